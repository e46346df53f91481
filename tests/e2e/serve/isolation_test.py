#!/usr/bin/env python3
"""32 tenants, each with a secret of its own, sharing beginnings, prefixes and too little memory: no
secret ever shows in another tenant's answer, and nobody's tokens are counted as cached for another.

Usage: isolation_test.py PROGRAM MODEL|fake SECONDS
"""

import os
import random
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_process import CLASSES, FAKE, LIGHT, Server, merged

PROGRAM, MODEL, SECONDS = '', '', 20
TENANTS = 32
ANSWERS_MIN = 3  # of each, however slow the machine is
# The same for everybody: what could be shared wrongly.
COMMON = 'You keep the notes of a company. ' + 'Every note has a number and a word. ' * 12


def secret(tenant):
    return f'zq{random.Random(tenant).randrange(16**8):08x}'


class IsolationTest(unittest.TestCase):
    def test_no_secret_leaves_its_tenant(self):
        keys = {f't{i}': {'key': f'sk-{i}', 'class': ('vip', 'standard')[i % 2]}
                for i in range(TENANTS)}
        # A budget of a few contexts: prefixes are dropped and blocks demoted all the time.
        memory = {'runtime': {'kv_budget_mb': 160}} if MODEL else {}
        lane = {'stack.main': {'concurrency': 8, 'concurrency_max': 8, 'queue_max': 64}}
        server = Server(PROGRAM, merged(LIGHT if MODEL else FAKE, memory, CLASSES, lane), keys,
                        MODEL)
        self.addCleanup(server.stop)
        self.problems, self.answers, self.cached = [], 0, 0
        self.lock = threading.Lock()
        end = time.monotonic() + SECONDS
        threads = [threading.Thread(target=self.watched, args=(server, i, end))
                   for i in range(TENANTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f'{self.answers} answers, {self.cached} cached tokens')
        self.assertEqual(self.problems, [])
        self.assertGreaterEqual(self.answers, ANSWERS_MIN * TENANTS)
        self.assertGreater(self.cached, 0)
        metrics = server.metrics('sk-0')
        running = [v for k, v in metrics.items() if k.startswith('varve_lane_running')]
        self.assertEqual(sum(running), 0)

    def watched(self, server, number, end):
        try:
            self.tenant(server, number, end)
        except Exception as error:
            self.problems.append((number, repr(error)))

    def tenant(self, server, number, end):
        mine, draw, first = secret(number), random.Random(number), True
        others = [secret(i) for i in range(TENANTS) if i != number]
        messages = [{'role': 'system', 'content': COMMON},
                    {'role': 'user', 'content': f'The word of note {number} is {mine}. '
                                                f'Repeat: {mine} {mine} {mine}'}]
        n = 0
        while n < ANSWERS_MIN or time.monotonic() < end:
            body = {'messages': messages, 'max_tokens': draw.choice((4, 12, 30)), 'temperature': 0}
            # VIPs that never pause keep the others waiting until they end: see ageing.
            status, headers, answer = server.request(
                'POST', '/v1/chat/completions', body, f'sk-{number}', timeout=600 + SECONDS)
            if status == 429:
                time.sleep(min(1.0, float(headers['retry-after-ms']) / 1000))
                continue
            n += 1
            with self.lock:
                self.note(number, status, answer, others, first)
            first = False
            if draw.random() < 0.2:  # another conversation, so that old ones are dropped
                messages = [messages[0], {'role': 'user', 'content': (
                    f'Note {draw.randrange(99)}: {mine}. ' + 'More text. ' * draw.randrange(120))}]

    def note(self, number, status, answer, others, first):
        if status != 200:
            self.problems.append((number, status, answer))
            return
        text = answer['choices'][0]['message']['content']
        cached = answer['usage']['prompt_tokens_details']['cached_tokens']
        leaked = [s for s in others if s in text]
        if leaked:
            self.problems.append((number, 'leaked', leaked, text))
        if first and cached:
            self.problems.append((number, 'cached before the first answer', cached))
        self.answers += 1
        self.cached += cached


if __name__ == '__main__':
    SECONDS = float(sys.argv.pop(3))
    MODEL = sys.argv.pop(2)
    MODEL = '' if MODEL == 'fake' else MODEL
    PROGRAM = sys.argv.pop(1)
    unittest.main()
