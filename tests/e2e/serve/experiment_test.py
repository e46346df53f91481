#!/usr/bin/env python3
"""Experiments from outside: two stacks of the fake runtime on live traffic, `varve ab`, guardrails,
shadow replay, reloads of weights, restarts.

Usage: experiment_test.py PROGRAM
"""

import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_process import CLASSES, FAKE, KEYS, Server, merged

PROGRAM = ''
CHAT = '/v1/chat/completions'
# A question with this byte fails on the stack that is poisoned with it.
POISON = '~'


class ExperimentTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log = os.path.join(folder.name, 'log.sqlite')

    def tables(self, weights=(50, 50), **more):
        experiment = {'class': 'standard', 'salt': '0123456789abcdef0123',
                      'arms': [f'main:{weights[0]}', f'other:{weights[1]}'], **more}
        return merged(FAKE, CLASSES, {
            'server': {'experiment_log_path': self.log},
            'stack.other': {'profile': 'other.toml'}, 'experiment.new': experiment})

    def start(self, tables, other=None):
        runtime = {'runtime': other or {}}
        server = Server(PROGRAM, tables, KEYS, profiles={'other.toml': merged(FAKE, runtime)})
        self.addCleanup(server.stop)
        return server

    def ask(self, server, conversation, text='a question', expected=(200,), key='sk-a', arm=''):
        """The status; what came back says nothing of arms, as the key is no admin's."""
        headers = {'X-Conversation-Id': f'c{conversation}'}
        if arm:
            headers['X-Varve-Arm'] = arm
        body = {'messages': [{'role': 'user', 'content': text}], 'max_tokens': 4}
        status, headers, answer = server.request('POST', CHAT, body, key, headers)
        self.assertIn(status, expected, answer)
        if key != 'sk-admin':
            self.assertEqual([h for h in headers if h.lower().startswith('x-varve')], [])
        return status, headers

    def ask_many(self, server, conversations, **options):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda c: self.ask(server, c, **options), conversations))

    def rows(self, query):
        """Of the log, which the server writes in batches."""
        with sqlite3.connect(f'file:{self.log}?mode=ro', uri=True) as log:
            return log.execute(query).fetchall()

    def wait_for_rows(self, query, n):
        end = time.monotonic() + 30
        while len(rows := self.rows(query)) < n:
            self.assertLess(time.monotonic(), end, f'{len(rows)} rows of {n}: {query}')
            time.sleep(0.05)
        return rows

    def arms(self, conversations):
        """Arm of each conversation; all its requests have the same."""
        rows = self.rows('SELECT unit_hash, arm FROM exposure ORDER BY id')
        found = {}
        for unit, arm in rows:
            self.assertEqual(found.setdefault(unit, arm), arm)
        self.assertEqual(len(found), conversations)
        return found

    def ab(self, *arguments):
        environment = {k: v for k, v in os.environ.items() if not k.startswith('VARVE_')}
        environment['AB_KEY'] = 'sk-admin'
        run = subprocess.run([PROGRAM, 'ab', *arguments], capture_output=True, text=True,
                             timeout=60, env=environment)
        return run.returncode, run.stdout, run.stderr

    def test_status_and_report(self):
        server = self.start(self.tables(), {'token_us': 2000})
        self.ask_many(server, list(range(150)) * 2)
        self.wait_for_rows('SELECT 1 FROM exposure', 300)
        self.arms(150)
        code, out, error = self.ab('status', '--log', self.log, '--json')
        self.assertEqual(code, 0, error)
        (status,) = json.loads(out)
        self.assertEqual(status['experiment'], 'new')
        self.assertEqual(sum(a['requests'] for a in status['arms']), 300)
        self.assertEqual(sum(a['units'] for a in status['arms']), 150)
        self.assertTrue(all(50 <= a['units'] <= 100 for a in status['arms']), status['arms'])
        code, out, error = self.ab('report', '--profile', server.profile, '--json')
        self.assertIn(code, (0, 1), error)
        (report,) = json.loads(out)
        gates = {g['name']: g['state'] for g in report['gates']}
        self.assertTrue(gates)
        self.assertEqual(report['valid'], code == 0)
        self.assertEqual(len(report['treatments']), 1 if report['valid'] else 0)
        self.assertIn('new', self.ab('report', '--log', self.log)[1])
        metrics = server.metrics('sk-admin')
        exposures = sum(v for k, v in metrics.items()
                        if k.startswith('varve_experiment_exposures_total'))
        self.assertEqual(exposures, 300)

    def test_who_hangs_is_told_before_the_end(self):
        server = self.start(self.tables((1, 99)), {'delay_ms': 60000})
        client = threading.Thread(target=self.ask_until_cut_off, args=(server,))
        client.start()
        self.wait_for_rows("SELECT 1 FROM open WHERE arm = 'other'", 1)
        other = self.status(server)['arms'][1]
        self.assertEqual((other['requests'], other['open'], other['unanswered']), (0, 1, 1))
        code, out, error = self.ab('status', '--log', self.log, '--json')
        self.assertEqual(code, 0, error)
        self.assertEqual([a['open'] for a in json.loads(out)[0]['arms']], [0, 1])
        server.process.kill()
        server.wait()
        client.join()
        self.assertEqual(len(self.rows('SELECT 1 FROM open')), 1)
        self.assertEqual(self.rows('SELECT 1 FROM exposure'), [])

    def ask_until_cut_off(self, server):
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.ask(server, 0)

    def test_stop_by_hand_holds_and_outlives_a_restart(self):
        server = self.start(self.tables())
        self.ask_many(server, range(40))
        code, out, error = self.ab('stop', '--url', server.url, '--key-env', 'AB_KEY', '--arm',
                                   'other', '--why', 'enough', 'new')
        self.assertEqual(code, 0, error + out)
        self.check_stopped(server, 'enough')
        self.wait_for_rows("SELECT 1 FROM event WHERE what = 'arm stopped'", 1)
        self.assertIn('arm stopped: other: admin: enough', self.ab('status', '--log', self.log)[1])
        self.assertEqual(server.stop(), 0)
        again = self.start(self.tables())
        self.check_stopped(again, 'enough')
        # A new version begins anew.
        self.assertEqual(again.stop(), 0)
        anew = self.start(self.tables(version=2))
        self.assertIsNone(self.status(anew)['arms'][1]['stopped'])

    def test_stop_needs_an_admin_key_and_an_arm(self):
        server = self.start(self.tables())
        body = {'arm': 'other', 'why': 'x'}
        path = '/admin/experiments/new/stop'
        self.assertEqual(server.request('POST', path, body, 'sk-a')[0], 403)
        stop = ('stop', '--url', server.url, '--key-env', 'AB_KEY')
        code, _, error = self.ab(*stop, '--arm', 'none', 'new')
        self.assertEqual(code, 1)
        self.assertEqual(error, 'varve: the server answered 404: found the arm "none"; expected '
                                'one of main, other\n')
        self.assertEqual(self.ab(*stop, '--arm', 'other', 'none')[0], 1)
        self.assertEqual(self.ab(*stop, '--arm', 'main', 'new')[0], 1)
        self.assertIsNone(self.status(server)['arms'][1]['stopped'])

    def test_stop_finds_the_server_of_the_profile(self):
        profile = self.start(self.tables()).profile
        code, _, error = self.ab('stop', '--profile', profile, '--key-env', 'AB_KEY', '--arm', 'x',
                                 'new')
        self.assertEqual((code, error), (2, 'varve: found server.port = 0, any; expected --url\n'))
        self.assertIn('http://127.0.0.2:9:', self.ab(
            'stop', '--profile', profile, '--set', 'server.host=127.0.0.2', '--set',
            'server.port=9', '--arm', 'x', 'new')[2])

    def test_report_names_the_experiments_that_are_there(self):
        self.ask_many(self.start(self.tables()), range(4))
        self.wait_for_rows('SELECT 1 FROM exposure', 4)
        code, _, error = self.ab('report', '--log', self.log, 'nev')
        self.assertEqual((code, error), (1, 'varve: found no experiment "nev" in the log; expected '
                                            'one of new; did you mean "new"?\n'))

    def status(self, server):
        status, _, answer = server.request('GET', '/admin/experiments', key='sk-admin')
        self.assertEqual(status, 200)
        (experiment,) = answer['experiments']
        return experiment

    def check_stopped(self, server, why):
        main, other = self.status(server)['arms']
        self.assertIn(why, other['stopped'])
        self.assertEqual((main['weight'], other['weight']), (100, 0))
        before = other['requests']
        self.ask_many(server, range(60))
        self.assertEqual(self.status(server)['arms'][1]['requests'], before)

    def test_guardrail_stops_an_arm_that_fails(self):
        server = self.start(self.tables(min_units=10), {'poison_token': ord(POISON)})
        text = f'what is {POISON}'
        results = []
        for start in range(0, 200, 20):
            results += self.ask_many(server, range(start, start + 20), text=text,
                                     expected=(200, 500))
        statuses = [status for status, _ in results]
        self.assertGreater(statuses.count(500), 9)
        self.assertEqual(statuses[-60:].count(500), 0, statuses)
        self.check_stopped(server, 'error rate')
        events = self.wait_for_rows("SELECT what, detail FROM event WHERE what LIKE '%stop%'", 1)
        self.assertIn('other', str(events))
        self.assertEqual(sum(v for k, v in server.metrics('sk-admin').items()
                             if k.startswith('varve_experiment_stops_total')), 1)

    def test_shadow_replay_compares(self):
        server = self.start(self.tables((100, 0), shadow_percent=100))
        for conversation in range(12):
            self.ask(server, conversation)
            self.wait_for_rows('SELECT 1 FROM quality', conversation + 1)
        for delta, kld, top1, tokens in self.rows(
                'SELECT delta_nll, mean_kld, top1_agreement, tokens FROM quality'):
            self.assertAlmostEqual(delta, 0, delta=1e-6)
            self.assertAlmostEqual(kld, 0, delta=1e-6)
            self.assertEqual((top1, tokens), (1.0, 4))
        shadows = self.wait_for_rows('SELECT arm FROM exposure WHERE is_shadow = 1', 12)
        self.assertEqual(set(shadows), {('other',)})
        self.assertEqual(self.status(server)['arms'][0]['requests'], 12)

    def test_reloaded_weights_move_the_added_share_alone(self):
        server = self.start(self.tables((80, 20)))
        self.ask_many(server, range(300))
        self.wait_for_rows('SELECT 1 FROM exposure', 300)
        before = self.arms(300)
        server.write_profile(self.tables((60, 40)))
        server.signal(signal.SIGHUP)
        server.wait_for_log('reloaded')
        self.ask_many(server, range(300))
        rows = self.wait_for_rows('SELECT unit_hash, arm FROM exposure ORDER BY id', 600)
        after = dict(rows[300:])
        self.assertEqual(set(after), set(before))
        self.assertFalse([u for u in before if before[u] == 'other' and after[u] == 'main'])
        moved = sum(before[u] != after[u] for u in before)
        self.assertTrue(30 <= moved <= 90, moved)  # a fifth of 300, give or take four sigma

    def test_a_forced_arm_is_for_admins(self):
        tables = self.tables((100, 0))
        tables['class.vip'] = {**tables['class.vip']}
        tables['experiment.new'] = {**tables['experiment.new'], 'class': 'vip'}
        server = self.start(tables)
        _, headers = self.ask(server, 1, key='sk-admin', arm='other')
        told = [headers[f'X-Varve-{name}'] for name in ('Arm', 'Stack', 'Class')]
        self.assertEqual(told, ['other', 'other', 'vip'])
        self.ask(server, 1, key='sk-vip', arm='other', expected=(403,))
        self.ask(server, 1, key='sk-admin', arm='none', expected=(404,))


if __name__ == '__main__':
    PROGRAM = sys.argv.pop(1)
    unittest.main()
