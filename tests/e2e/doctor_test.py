#!/usr/bin/env python3
"""varve doctor --url against servers that say what the test wants.

Usage: doctor_test.py PROGRAM
"""

import copy
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import unittest

PROGRAM = ''

BOARD = {
    'version': '1.2.3',
    'model': 'tiny',
    'draining': False,
    'attention': {
        'timed_tokens': 1234,
        'timings': {
            'local_attn_ms': 1, 'sparse_attn_ms': 1, 'summary_attn_ms': 0, 'kv_cache_ms': 0,
            'other_ms': 8, 'sparse_attn_hit_rate': 0.75,
            'topk_dynamics': {'mean': 60.5, 'min': 42, 'max': 64, 'reused': 100},
        },
        'shares': {'local': 0.1, 'sparse': 0.1, 'summary': 0, 'kv_cache': 0, 'other': 0.8},
        'rules': [{'part': 'local', 'share': 0.1, 'limit': 0.6, 'broken': False}],
        'advice': [],
    },
    'stacks': [{
        'stack': 'main',
        'lane': {
            'running': 3, 'waiting': 2, 'concurrency': 16, 'queue_max': 48, 'steps': 9,
            'step_clips': 0, 'demotions': 0, 'peak': False, 'oldest_wait_seconds': 0.5,
            'no_progress_seconds': 0.1, 'stalled': False,
        },
        'kv': {
            'hot_bytes': 1 << 20, 'warm_bytes': 2 << 20, 'cold_bytes': 0, 'backing_bytes': 0,
            'bf16_bytes': 4 << 20, 'hot_tokens': 1, 'warm_tokens': 1, 'cold_tokens': 0,
            'kept_prefix_bytes': 0, 'budget_bytes': 1 << 30, 'used_bytes': 3 << 20,
        },
        'plugins': [{'kind': 'attention', 'name': 'hybrid', 'version': '1', 'errors': 0,
                     'worker': None}],
    }],
}


class Handler(http.server.BaseHTTPRequestHandler):
    answer = (200, '{}')
    seen = None

    def do_GET(self):
        type(self).seen = (self.path, self.headers.get('Authorization'))
        status, body = self.answer
        self.send_response(status)
        self.send_header('Content-Length', str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


class DoctorUrlTest(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self.url = f'http://127.0.0.1:{self.server.server_address[1]}'
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.board = copy.deepcopy(BOARD)

    def tearDown(self):
        self.server.shutdown()
        self.server.server_close()

    def doctor(self, *words, url=None, **env):
        kept = {k: v for k, v in os.environ.items() if not k.startswith('VARVE_')}
        return subprocess.run([PROGRAM, 'doctor', '--url', url or self.url, *words], text=True,
                              capture_output=True, timeout=60, env={**kept, **env})

    def ask(self, *words):
        Handler.answer = (200, json.dumps(self.board))
        return self.doctor(*words)

    def test_a_healthy_server(self):
        result = self.ask()
        self.assertEqual(result.returncode, 0, result.stderr)
        for text in ('tiny', '1.2.3', '1,234 timed tokens', 'stack main', 'attention/hybrid',
                     'Nothing to complain about'):
            self.assertIn(text, result.stdout)
        self.assertEqual(Handler.seen, ('/debug/attention', None))

    def test_advice_and_findings_are_told(self):
        self.board['attention']['advice'] = ['lower attention.window_tokens']
        stack = self.board['stacks'][0]
        stack['lane'].update(stalled=True, no_progress_seconds=75, waiting=40)
        stack['kv']['used_bytes'] = stack['kv']['budget_bytes']
        stack['plugins'][0]['errors'] = 2
        result = self.ask()
        self.assertEqual(result.returncode, 1)
        for text in ('lower attention.window_tokens', 'computed nothing for 75 s', '40 of 48',
                     'KV memory of stack main is full', 'attention/hybrid of stack main broke 2'):
            self.assertIn(text, result.stdout)
        findings = json.loads(self.ask('--json').stdout)['findings']
        self.assertEqual(len(findings), 5)

    def test_a_worker_in_quarantine_is_told(self):
        self.board['stacks'][0]['plugins'][0].update(
            errors=5, worker={'quarantined': True, 'failures': 5})
        result = self.ask()
        self.assertEqual(result.returncode, 1)
        self.assertIn('the own process of plugin attention/hybrid of stack main is in quarantine '
                      'after 5 failures', result.stdout)
        self.assertNotIn('promises', result.stdout)

    def test_nothing_timed_yet(self):
        self.board['attention']['timed_tokens'] = 0
        self.assertIn('return_timings', self.ask().stdout)

    def test_control_characters_do_not_reach_the_terminal(self):
        self.board['model'] = 'a\x1b[31mb'
        self.assertNotIn('\x1b', self.ask().stdout)

    def test_the_key_is_sent(self):
        Handler.answer = (200, json.dumps(self.board))
        self.assertEqual(self.doctor('--key-env', 'MY_KEY', MY_KEY='secret').returncode, 0)
        self.assertEqual(Handler.seen[1], 'Bearer secret')

    def refused(self, result, code, *texts):
        self.assertEqual(result.returncode, code, result.stdout)
        for text in texts:
            self.assertIn(text, result.stderr)

    def test_a_key_is_wanted(self):
        Handler.answer = (401, '{"error":{}}')
        self.refused(self.doctor(), 1, '--key-env NAME', 'admin')
        self.refused(self.doctor('--key-env', 'MY_KEY', MY_KEY='x'), 1, 'the one in MY_KEY is not')
        self.refused(self.doctor('--key-env', 'NO_KEY'), 2, 'NO_KEY')

    def test_another_server(self):
        for answer in ((404, 'no'), (500, ''), (200, '<html>'), (200, '[]'), (200, '{"a": 1}'),
                       (200, '[' * 100000)):
            Handler.answer = answer
            self.refused(self.doctor(), 1, 'no varve server')

    def test_a_board_of_another_version(self):
        del self.board['stacks'][0]['lane']['waiting']
        self.refused(self.ask(), 1, 'another version')

    def test_nobody_there(self):
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            url = f'http://127.0.0.1:{free.getsockname()[1]}'
            self.refused(self.doctor(url=url), 1, url, 'refused')

    def test_no_url(self):
        for url in ('localhost:8080', 'https://a', 'http://', 'http://a:b'):
            self.refused(self.doctor(url=url), 2, 'http://')


if __name__ == '__main__':
    PROGRAM = sys.argv.pop(1)
    unittest.main()
