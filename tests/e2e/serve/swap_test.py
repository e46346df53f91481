#!/usr/bin/env python3
"""Stacks that a reload changes while the server answers, on the fake runtime.

Usage: swap_test.py PROGRAM
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_process import FAKE, Server, merged

PROGRAM = ''
CHAT = '/v1/chat/completions'
GENERATIONS_MAX = 8


def ask(n, **more):
    return {'messages': [{'role': 'user', 'content': 'hello there'}], 'max_tokens': n,
            'ignore_eos': True, **more}


def sha256(path):
    with open(path, 'rb') as file:
        return hashlib.sha256(file.read()).hexdigest()


class SwapTest(unittest.TestCase):
    def start(self, tables):
        server = Server(PROGRAM, tables)
        self.addCleanup(server.stop)
        return server

    def reload(self, server, tables):
        server.write_profile(tables)
        return server.request('POST', '/admin/reload')[2]

    def stacks(self, server):
        board = server.request('GET', '/debug/attention')[2]
        return {entry['stack']: entry for entry in board['stacks']}

    def wait_for_stacks(self, server, names):
        end = time.monotonic() + 60
        while sorted(self.stacks(server)) != sorted(names):
            self.assertLess(time.monotonic(), end, self.stacks(server))
            time.sleep(0.02)

    def test_the_old_one_finishes_while_the_new_one_serves(self):
        tables = merged(FAKE, {'runtime': {'delay_ms': 50}})
        server = self.start(tables)
        events, begun = [], threading.Event()

        def read():
            for data in server.events(CHAT, ask(120, stream=True)):
                events.append(data)
                begun.set()

        thread = threading.Thread(target=read)
        thread.start()
        self.assertTrue(begun.wait(20))
        server.write_profile(merged(tables, {'runtime': {'delay_ms': 0}}))
        server.signal(signal.SIGHUP)
        server.wait_for_log('stack main: generation 2')
        self.assertEqual(sorted(self.stacks(server)), ['main', 'main@1'])
        status, _, answer = server.request('POST', CHAT, ask(30))
        self.assertEqual((status, answer['usage']['completion_tokens']), (200, 30))
        self.assertEqual(server.metrics()['varve_lane_running_requests{stack="main@1"}'], 1)
        thread.join(60)
        self.assertEqual(events[-1], '[DONE]')
        self.assertEqual(len([e for e in events if '"content"' in e]), 120)
        self.wait_for_stacks(server, ['main'])
        self.assertEqual(self.stacks(server)['main']['generation'], 2)

    def test_a_registered_context_stays_in_its_generation(self):
        server = self.start(FAKE)
        body = {'text': 'a document ' * 20}
        context = server.request('POST', '/v1/contexts', body)[2]['id']
        self.reload(server, merged(FAKE, {'runtime': {'delay_ms': 1}}))
        self.assertEqual(sorted(self.stacks(server)), ['main', 'main@1'])
        status, _, answer = server.request('POST', CHAT, ask(3, context=context))
        self.assertEqual(status, 200)
        self.assertGreater(answer['usage']['prompt_tokens_details']['cached_tokens'], 0)
        self.assertEqual(server.request('DELETE', f'/v1/contexts/{context}')[0], 200)
        self.wait_for_stacks(server, ['main'])

    def test_another_library_and_pins(self):
        found = json.loads(subprocess.run([PROGRAM, 'plugin', 'info', 'runtime/fake', '--json'],
                                          capture_output=True, check=True).stdout)
        server = self.start(FAKE)
        library = os.path.join(server.folder, 'runtime-fake.so')
        shutil.copy(found['path'], library)
        os.chmod(library, 0o644)
        pins = [sha256(library)]
        tables = merged(FAKE, {'runtime': {'plugin': library, 'sha256': pins}})
        self.reload(server, tables)
        first = self.stacks(server)['main']
        self.assertEqual(first['plugins'][0]['sha256'], pins[0])
        self.wait_for_stacks(server, ['main'])

        with open(library, 'rb') as file:
            other = file.read() + b'x'
        with open(library + '.new', 'wb') as file:
            file.write(other)
        os.rename(library + '.new', library)
        refused = self.reload(server, tables)
        self.assertIn('MRI-E022', json.dumps(refused))
        self.assertIn('reload refused, the old settings stay', server.log())
        self.assertEqual(self.stacks(server)['main']['digest'], first['digest'])
        self.assertEqual(server.request('POST', CHAT, ask(3))[0], 200)

        pins.append(sha256(library))
        changes = self.reload(server, merged(tables, {'runtime': {'sha256': pins}}))['changes']
        self.assertIn('stack main: generation 2', '\n'.join(changes))
        now = self.stacks(server)['main']
        self.assertEqual(now['plugins'][0]['sha256'], pins[1])
        self.assertNotEqual(now['digest'], first['digest'])
        info = [name for name in server.metrics() if name.startswith('varve_plugin_info')]
        self.assertTrue(any(pins[1] in name and 'generation="2"' in name for name in info), info)
        self.assertEqual(server.request('POST', CHAT, ask(3))[0], 200)

    def test_generations_have_an_end(self):
        server = self.start(FAKE)
        for i in range(GENERATIONS_MAX):
            answer = self.reload(server, merged(FAKE, {'runtime': {'token_us': i + 1}}))
            self.assertIn('changes', answer)
        refused = self.reload(server, merged(FAKE, {'runtime': {'token_us': 99}}))
        self.assertIn('expected a restart', json.dumps(refused))
        self.assertEqual(server.request('POST', CHAT, ask(3))[0], 200)
        self.wait_for_stacks(server, ['main'])


if __name__ == '__main__':
    PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=2)
