#!/usr/bin/env python3
"""A plugin that crashes in the server's own process: it is named, and refused at the next start,
until it is allowed again or runs in a process of its own, where its crashes end nothing.

Usage: crash_test.py PROGRAM MODEL FOLDER_OF_KV_TIER_ROGUE
"""

import http.client
import os
import re
import signal
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_process import CLASSES, LIGHT, Server, merged

PROGRAM, MODEL, ROGUE = '', '', ''
ID = 'org.varve.test.kv_tier.rogue'


class CrashTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.crashes, self.n_asked = folder.name, 0

    def start(self, policy, **plugins):
        library = os.path.join(os.path.dirname(PROGRAM), '..', 'lib', 'varve')
        tables = {
            'runtime': LIGHT['runtime'],
            'kv_tier': {'plugin': 'rogue', 'tier': 1, **policy},
            'plugins': {'directories': [ROGUE, os.path.abspath(library)],
                        'crash_dir': self.crashes, **plugins}}
        server = Server(PROGRAM, merged(tables, CLASSES), None, MODEL)
        self.addCleanup(server.stop)
        return server

    def ask(self, server):
        self.n_asked += 1  # another text each time: of a known one nothing would be decided
        return server.request('POST', '/v1/chat/completions', {
            'messages': [{'role': 'user', 'content': f'{self.n_asked} ' * 100}], 'max_tokens': 8,
            'ignore_eos': True})

    def refusal(self):
        with self.assertRaises(AssertionError) as refused:
            self.start({})
        return str(refused.exception)

    def crash(self):
        server = self.start({'crash_at_step': 1})
        with self.assertRaises((http.client.HTTPException, ConnectionError)):
            self.ask(server)
        self.assertEqual(server.wait(), -signal.SIGSEGV)
        return server.log()

    def test_it_is_named_and_refused_until_allowed(self):
        said = re.search(f'varve: SIGSEGV in the plugin {ID}, (/.*/kv_tier-rogue.so), '
                         'sha256 ([0-9a-f]{64}), function decide', self.crash())
        self.assertTrue(said)
        note = os.path.join(self.crashes, f'crash-{said[2]}')
        self.assertEqual(os.listdir(self.crashes), [os.path.basename(note)])
        refusal = self.refusal()
        for text in ('MRI-E020', said[1], f'the record {note}', 'isolation', 'allow_crashed'):
            self.assertIn(text, refusal)
        self.assertEqual(self.ask(self.start({}, allow_crashed=True))[0], 200)
        os.remove(note)
        self.assertEqual(self.ask(self.start({}))[0], 200)

    def test_in_a_process_of_its_own_it_ends_nothing(self):
        self.crash()
        server = self.start({'crash_at_step': 1, 'isolation': 'worker', 'fallback': 'full'})
        for _ in range(8):  # more than quarantine takes
            self.assertEqual(self.ask(server)[0], 200)
        server.wait_for_log('in quarantine after 5 failures: the fallback ')
        name = 'varve_worker_quarantined{stack="main",plugin="kv_tier/rogue"}'
        self.assertEqual(server.metrics()[name], 1)
        self.assertEqual(self.ask(server)[0], 200)
        self.assertEqual(server.stop(), 0)


if __name__ == '__main__':
    ROGUE = os.path.abspath(sys.argv.pop(3))
    MODEL = sys.argv.pop(2)
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
