#!/usr/bin/env python3
"""Signals, drain, reload, logs and exit codes of the server, on the fake runtime.

Usage: life_test.py PROGRAM
"""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_process import CLASSES, FAKE, KEYS, Server, keys_toml, merged

PROGRAM = ''
SLOW = merged(FAKE, {'runtime': {'delay_ms': 20}}, CLASSES)
CHAT = '/v1/chat/completions'


def ask(n, **more):
    return {'messages': [{'role': 'user', 'content': 'hello there'}], 'max_tokens': n,
            'ignore_eos': True, **more}


class LifeTest(unittest.TestCase):
    def start(self, tables=SLOW, keys=KEYS):
        server = Server(PROGRAM, tables, keys)
        self.addCleanup(server.stop)
        return server

    def streaming(self, server, n):
        """A stream in a thread of its own: its events, and an event that is set at the first."""
        events, begun = [], threading.Event()

        def read():
            with contextlib.suppress(ConnectionError, http.client.HTTPException):
                for data in server.events(CHAT, ask(n, stream=True), 'sk-a'):
                    events.append(data)
                    begun.set()

        thread = threading.Thread(target=read)
        thread.start()
        self.assertTrue(begun.wait(20))
        return events, thread

    def test_sigterm_finishes_what_runs_and_takes_nothing_new(self):
        server = self.start()
        events, thread = self.streaming(server, 40)
        server.signal(signal.SIGTERM)
        server.wait_for_log('draining')
        status, headers, _ = server.request('GET', '/readyz')
        self.assertEqual(status, 503)
        self.assertEqual(server.request('GET', '/livez')[0], 200)
        self.assertEqual(server.request('POST', CHAT, ask(1), 'sk-a')[0], 503)
        thread.join(30)
        self.assertEqual(events[-1], '[DONE]')
        self.assertEqual(len([e for e in events if '"content"' in e]), 40)
        self.assertEqual(server.wait(), 0)

    def test_the_shutdown_timeout_cuts_off_with_an_error_event(self):
        server = self.start(merged(SLOW, {'server': {'shutdown_timeout_s': 1}}))
        events, thread = self.streaming(server, 2000)
        server.signal(signal.SIGTERM)
        thread.join(30)
        self.assertEqual(events[-1], '[DONE]')
        self.assertIn('error', json.loads(events[-2]))
        self.assertEqual(server.wait(), 3)

    def test_a_second_signal_ends_at_once(self):
        server = self.start(merged(SLOW, {'server': {'shutdown_timeout_s': 60}}))
        events, _ = self.streaming(server, 3000)
        server.signal(signal.SIGTERM)
        server.wait_for_log('draining')
        server.signal(signal.SIGTERM)
        self.assertEqual(server.wait(10), 130)
        self.assertNotIn('[DONE]', events)

    def test_sighup_takes_new_keys_and_classes(self):
        server = self.start()
        self.assertEqual(server.request('GET', '/v1/models', key='sk-new')[0], 401)
        keys = {**KEYS, 'new': {'key': 'sk-new', 'class': 'standard'}}
        del keys['team-b']
        server.write('keys.toml', keys_toml(keys))
        server.signal(signal.SIGHUP)
        server.wait_for_log('reloaded')
        self.assertEqual(server.request('GET', '/v1/models', key='sk-new')[0], 200)
        self.assertEqual(server.request('GET', '/v1/models', key='sk-b')[0], 401)

    def test_sighup_with_a_broken_file_keeps_the_old(self):
        server = self.start()
        with open(server.profile, encoding='utf-8') as old:
            text = old.read()
        for broken in (text + '\n[server\n', text.replace('priority = 100', 'priority = "high"'),
                       text + '\n[class.third]\nstack = "nowhere"\n'):
            with self.subTest(broken=broken[-40:]):
                server.write('profile.toml', broken)
                before = server.log().count('reload refused')
                server.signal(signal.SIGHUP)
                while server.log().count('reload refused') == before:
                    server.wait_for_log('reload refused')
                self.assertEqual(server.request('GET', '/v1/models', key='sk-a')[0], 200)
        server.write('keys.toml', 'no toml at all [')
        server.write('profile.toml', text)
        server.signal(signal.SIGHUP)
        server.wait_for_log('keys.toml')
        self.assertEqual(server.request('GET', '/v1/models', key='sk-a')[0], 200)

    def test_log_lines_are_json_with_ids_and_without_prompts(self):
        server = self.start(merged(FAKE, CLASSES))
        _, headers, _ = server.request('POST', CHAT, {
            'messages': [{'role': 'user', 'content': 'xyzzy-secret'}], 'max_tokens': 2}, 'sk-a',
            {'X-Request-Id': 'my-id-7'})
        self.assertEqual(headers['X-Request-Id'], 'my-id-7')
        server.request('GET', '/health')
        server.wait_for_log('my-id-7')
        log = server.log()
        for line in log.splitlines():
            json.loads(line)
        self.assertNotIn('xyzzy', log)
        self.assertNotIn('sk-a', log)
        self.assertNotIn('/health', log)


class StartTest(unittest.TestCase):
    def check_refused(self, tables, *parts):
        with self.assertRaises(AssertionError) as caught:
            Server(PROGRAM, tables).stop()
        for part in parts:
            self.assertIn(part, str(caught.exception))

    def test_public_address_without_keys(self):
        self.check_refused(merged(FAKE, {"server": {"host": "0.0.0.0"}}), "keys_path")

    def test_port_in_use(self):
        server = Server(PROGRAM, FAKE)
        self.addCleanup(server.stop)
        self.check_refused(merged(FAKE, {"server": {"port": server.port}}), str(server.port))

    def test_broken_keys_are_found_before_a_model_is_loaded(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = os.path.join(folder, 'keys.toml')
            with open(keys, 'w', encoding='utf-8') as out:
                out.write('[key.a]\nsha256 = "no digest"\n')
            os.chmod(keys, 0o600)
            run = subprocess.run(
                [PROGRAM, 'serve', '--set', f'server.keys_path={keys}', '--set',
                 f'model.path={folder}/none.gguf'], capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertIn('keys.toml', run.stderr)
        self.assertNotIn('loading stack', run.stderr)

    def test_exit_codes(self):
        run = subprocess.run([PROGRAM, 'serve', '--set', 'server.portt=1'], capture_output=True,
                             text=True, timeout=60)
        self.assertEqual(run.returncode, 2)
        self.assertIn('server.port', run.stderr)
        self.assertEqual(subprocess.run([PROGRAM, 'serve', '--help'], capture_output=True,
                                        timeout=60).returncode, 0)


if __name__ == '__main__':
    PROGRAM = sys.argv.pop(1)
    unittest.main()
