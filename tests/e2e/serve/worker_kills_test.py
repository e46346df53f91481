#!/usr/bin/env python3
"""Workers that are killed all the time under traffic: every request ends with the answer that it
has without kills, or with an error that says why; nothing is leaked. The times of VIP requests
beside the kills are printed, and those of before.

Usage: worker_kills_test.py PROGRAM MODEL KILLS
"""

import os
import random
import signal
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_process import CLASSES, EXACT, KEYS, Server, merged

PROGRAM, MODEL, KILLS = '', '', 50
CHAT = '/v1/chat/completions'
CALM_ANSWERS = 100  # of VIP requests, before the kills
REPLACED_S = 60

WORKER = {'isolation': 'worker', 'worker_failures_max': 1_000_000, 'worker_backoff_ms': 0,
          'worker_deadline_ms': 20_000}
# Blocks move, but in f32 that changes no answer, whoever has decided it.
MAIN = merged(EXACT, {
    'runtime': {'prefix_cache_mb': 0},
    'kv_tier': {'plugin': 'age', 'hot_tokens': 64, 'fallback': 'age', **WORKER},
    'batching': {'plugin': 'router', 'fallback': 'fcfs', **WORKER}})
# Nobody stands in for the workers, and summaries are made in one too.
BARE = merged(MAIN, {
    'runtime': {'backing': 'ram'},
    'kv_tier': {'fallback': '', 'warm_tokens': 64},
    'summary': {'plugin': 'clusters', **WORKER}})
TABLES = merged(MAIN, CLASSES, {'class.standard': {'stack': 'bare'},
                                'stack.bare': {'profile': 'bare.toml'}})
# Workers: kv_tier and batching of two stacks, summary of one.
N_WORKERS = 5
LENGTHS = {'sk-vip': (3, 20, 60, 150), 'sk-a': (10, 100, 250, 800)}  # words of prompts


def body(words):
    text = ' '.join(f'word{i}' for i in range(words))
    return {'messages': [{'role': 'user', 'content': text}], 'max_tokens': 12, 'ignore_eos': True,
            'temperature': 0}


def children(pid):
    found = []
    for task in os.listdir(f'/proc/{pid}/task'):
        with open(f'/proc/{pid}/task/{task}/children', encoding='ascii') as file:
            found += [int(child) for child in file.read().split()]
    return found


def p99(seconds):
    return sorted(seconds)[len(seconds) * 99 // 100]


class Traffic:
    """Clients that ask and ask again until they are stopped; every answer is judged."""

    def __init__(self, server, references):
        self.server, self.references = server, references
        self.lock = threading.Lock()
        self.right, self.failed, self.wrong, self.vip_s = 0, 0, [], []
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(key, number))
                        for number, key in enumerate(('sk-vip', 'sk-vip', 'sk-a', 'sk-a', 'sk-a'))]
        for thread in self.threads:
            thread.start()

    def ask(self, key, number):
        draw = random.Random(number)
        while not self.over.is_set():
            words = draw.choice(LENGTHS[key])
            start = time.monotonic()
            status, _, answer = self.server.request('POST', CHAT, body(words), key, timeout=240)
            spent = time.monotonic() - start
            with self.lock:
                self.judge(key, words, status, answer, spent)

    def judge(self, key, words, status, answer, spent):
        if status == 200 and answer['choices'][0]['message'] == self.references[key, words]:
            self.right += 1
        elif key != 'sk-vip' and 'own process' in str(answer.get('error', {}).get('message')):
            self.failed += 1
        else:
            self.wrong.append((key, words, status, answer))
        if key == 'sk-vip':
            self.vip_s.append(spent)

    def answers(self):
        with self.lock:
            return self.right + self.failed + len(self.wrong)

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join()
        return self


class WorkerKillsTest(unittest.TestCase):
    def setUp(self):
        self.server = Server(PROGRAM, TABLES, KEYS, MODEL, profiles={'bare.toml': BARE})
        self.addCleanup(self.server.stop)
        self.pid = self.server.process.pid

    def sums(self, *names):
        metrics = self.server.metrics('sk-admin')
        return [sum(v for k, v in metrics.items() if k.startswith(name)) for name in names]

    def holdings(self):
        """What must be as before: workers, descriptors, threads, bytes of keys and values."""
        with open(f'/proc/{self.pid}/status', encoding='ascii') as file:
            threads = next(int(line.split()[1]) for line in file if line.startswith('Threads'))
        return (len(children(self.pid)), len(os.listdir(f'/proc/{self.pid}/fd')), threads,
                *self.sums('varve_kv_used_bytes', 'varve_lane_running', 'varve_lane_waiting'))

    def wait_for(self, what, expected, seconds=REPLACED_S):
        end = time.monotonic() + seconds
        while (found := what()) != expected and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(found, expected)

    def settled(self):
        """holdings() once nothing runs and the connections of before are closed."""
        found = [None, self.holdings()]
        while found[-2] != found[-1] or any(found[-1][-2:]):
            time.sleep(0.2)
            found.append(self.holdings())
        return found[-1]

    def references(self):
        found = {}
        for key, lengths in LENGTHS.items():
            for words in lengths:
                status, _, answer = self.server.request('POST', CHAT, body(words), key, None, 240)
                self.assertEqual(status, 200, answer)
                found[key, words] = answer['choices'][0]['message']
        return found

    def kill(self, n, traffic):
        draw, last = random.Random(7), set()
        end = time.monotonic() + REPLACED_S
        while n > 0 and not traffic.wrong:
            alive = [pid for pid in children(self.pid) if pid not in last]
            self.assertLess(time.monotonic(), end, 'no worker was started again')
            if alive:
                victim = draw.choice(alive)
                if n % 4 == 0:  # a short call is seldom met: here one waits already
                    os.kill(victim, signal.SIGSTOP)
                    time.sleep(0.01)
                os.kill(victim, signal.SIGKILL)
                last.add(victim)
                n -= 1
                seen, end = traffic.answers(), time.monotonic() + REPLACED_S
                while traffic.answers() == seen and time.monotonic() < end:
                    time.sleep(0.002)
            time.sleep(draw.random() * 0.05)  # whatever the new one is at by then

    def test_every_request_ends_well(self):
        references = self.references()
        before = self.settled()
        self.assertEqual(before[0], N_WORKERS)
        calm = Traffic(self.server, references)
        while len(calm.vip_s) < CALM_ANSWERS and not calm.wrong:
            time.sleep(0.05)
        self.assertEqual((calm.stop().wrong, calm.failed), ([], 0))
        calls = [n for name, n in self.server.metrics('sk-admin').items()
                 if name.startswith('varve_worker_call_seconds_count')]
        self.assertEqual((len(calls), min(calls) > 0), (N_WORKERS, True), calls)

        beside = Traffic(self.server, references)
        start = time.monotonic()
        self.kill(KILLS, beside)
        seconds = time.monotonic() - start
        while len(beside.vip_s) < 20 and not beside.wrong:
            time.sleep(0.05)
        self.assertEqual(beside.stop().wrong, [])
        self.wait_for(self.holdings, before)
        self.assertEqual(self.references(), references)

        restarts, quarantined, fallbacks = self.sums(
            'varve_worker_restarts_total', 'varve_worker_quarantined', 'varve_worker_fallback')
        self.assertEqual((restarts, quarantined), (KILLS, 0))
        print(f'{KILLS} kills in {seconds:.0f} s: {beside.right} right answers, {beside.failed} '
              f'errors, {fallbacks:.0f} calls of fallbacks; VIP p99 {p99(beside.vip_s):.3f} s of '
              f'{len(beside.vip_s)}, without kills {p99(calm.vip_s):.3f} s of {len(calm.vip_s)}')
        self.assertEqual(self.server.stop(), 0)


if __name__ == '__main__':
    KILLS = int(sys.argv.pop(3))
    MODEL = sys.argv.pop(2)
    PROGRAM = sys.argv.pop(1)
    unittest.main()
