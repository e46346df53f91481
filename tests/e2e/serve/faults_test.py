#!/usr/bin/env python3
"""What goes wrong outside: clients that vanish or read slowly, idle connections, full disks,
signals under load. Afterwards the server answers as before and holds no more memory than at its
start.

Usage: faults_test.py PROGRAM MODEL
"""

import concurrent.futures
import contextlib
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_process import CLASSES, FAKE, KEYS, LIGHT, Server, merged

PROGRAM, MODEL = '', ''
CHAT = '/v1/chat/completions'
PLAIN = merged(LIGHT, CLASSES)


def body(words, n, **more):
    text = ' '.join(f'word{i}' for i in range(words))
    return {'messages': [{'role': 'user', 'content': text}], 'max_tokens': n, 'ignore_eos': True,
            'temperature': 0, **more}


def post(server, request, key='sk-a'):
    """A socket that has sent the request and read nothing."""
    data = json.dumps(request).encode()
    connection = socket.create_connection(('127.0.0.1', server.port), timeout=60)
    connection.sendall((f'POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n'
                        f'Authorization: Bearer {key}\r\n'
                        'Content-Type: application/json\r\n'
                        f'Content-Length: {len(data)}\r\n\r\n').encode() + data)
    return connection


def reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    connection.close()


class FaultsTest(unittest.TestCase):
    def start(self, tables=PLAIN, prefix=(), model=None):
        server = Server(PROGRAM, tables, KEYS, MODEL if model is None else model, prefix)
        self.addCleanup(server.stop)
        return server

    def level(self, server, name):
        return sum(v for k, v in server.metrics('sk-admin').items() if k.startswith(name))

    def wait_for_zero(self, server, *names):
        end = time.monotonic() + 30
        for name in names:
            while self.level(server, name) != 0:
                self.assertLess(time.monotonic(), end, f'{name} stays {self.level(server, name)}')
                time.sleep(0.05)

    def wait_for(self, server, name):
        end = time.monotonic() + 30
        while self.level(server, name) == 0:
            self.assertLess(time.monotonic(), end, name)
            time.sleep(0.01)

    def check_sound(self, server, reference):
        self.wait_for_zero(server, 'varve_lane_running', 'varve_lane_waiting', 'varve_kv_bytes')
        self.assertEqual(self.level(server, 'varve_kv_used_bytes'),
                         self.level(server, 'varve_kv_kept_prefix_bytes'))
        status, _, answer = server.request('POST', CHAT, body(20, 8), 'sk-a')
        self.assertEqual((status, answer['choices'][0]['message']['content']), (200, reference))

    def reference(self, server):
        _, _, answer = server.request('POST', CHAT, body(20, 8), 'sk-a')
        return answer['choices'][0]['message']['content']

    def test_clients_that_reset_while_their_prompt_is_read(self):
        server = self.start()
        reference = self.reference(server)
        for _ in range(8):
            connection = post(server, body(3000, 4, stream=True))
            self.wait_for(server, 'varve_lane_running')
            reset(connection)
        self.check_sound(server, reference)

    def test_clients_that_reset_while_they_are_answered(self):
        server = self.start()
        reference = self.reference(server)
        for _ in range(8):
            connection = post(server, body(10, 2000, stream=True))
            connection.recv(1)
            reset(connection)
        self.check_sound(server, reference)

    def test_slow_reader_costs_nobody_else(self):
        server = self.start()
        reference = self.reference(server)
        with contextlib.closing(post(server, body(10, 400, stream=True))) as slow:
            slow.recv(1)
            self.check_sound_beside(server, reference)
            data = b''
            while b'[DONE]' not in data:
                data += slow.recv(256)
        self.assertEqual(data.count(b'"content"'), 400)
        self.check_sound(server, reference)

    def check_sound_beside(self, server, reference):
        status, _, answer = server.request('POST', CHAT, body(20, 8), 'sk-a')
        self.assertEqual((status, answer['choices'][0]['message']['content']), (200, reference))

    def test_two_thousand_idle_connections(self):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
        server = self.start(merged(FAKE, CLASSES), model='')
        with contextlib.ExitStack() as open_sockets:
            for _ in range(2000):
                open_sockets.enter_context(contextlib.closing(
                    socket.create_connection(('127.0.0.1', server.port), timeout=10)))
            self.assertEqual(server.request('POST', CHAT, body(5, 3), 'sk-a')[0], 200)
        self.assertEqual(server.request('POST', CHAT, body(5, 3), 'sk-a')[0], 200)

    def test_full_disk_under_the_experiment_log(self):
        tables = merged(FAKE, CLASSES, {
            'server': {'experiment_log_path': 'log.sqlite'},
            'experiment.same': {'class': 'standard', 'salt': '0123456789abcdef', 'mode': 'aa',
                                'arms': ['main:50', 'main:50']}})
        # Files of the server may not grow past 64 KiB: each further write of the log fails.
        server = self.start(tables, prefix=('bash', '-c', 'ulimit -f 64; exec "$0" "$@"'), model='')
        for _ in range(400):
            self.assertEqual(server.request('POST', CHAT, body(5, 1), 'sk-a')[0], 200)
        self.assertEqual(server.request('GET', '/livez')[0], 200)

    def test_full_disk_under_the_backing(self):
        tables = merged(PLAIN, {
            'runtime': {'backing': 'file', 'backing_limit_mb': 1},
            'kv_tier': {'hot_tokens': 64, 'warm_tokens': 64}})
        server = self.start(tables)
        reference = self.reference(server)
        for _ in range(3):
            status, _, answer = server.request('POST', CHAT, body(600, 8), 'sk-a', None, 240)
            self.assertEqual(status, 200, answer)
        self.check_sound(server, reference)

    def test_too_little_memory_is_an_error_of_one_request(self):
        tables = merged({'runtime': {**LIGHT['runtime'], 'kv_budget_mb': 24},
                         'kv_tier': {'plugin': 'full'}}, CLASSES)
        server = self.start(tables)
        reference = self.reference(server)
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            runs = [pool.submit(server.request, 'POST', CHAT, body(n, 8), 'sk-a', None, 240)
                    for n in (20, 1500, 20, 1500, 20, 20)]
            statuses = [run.result()[0] for run in runs]
        self.assertEqual([statuses[i] for i in (0, 2, 4, 5)], [200] * 4, statuses)
        # 1,500 tokens never fit; beside others the server cannot know that.
        self.assertTrue({statuses[1], statuses[3]} <= {400, 429}, statuses)
        self.check_sound(server, reference)

    def test_sigterm_under_load_loses_nothing(self):
        server = self.start(merged(FAKE, {'runtime': {'delay_ms': 5}}, CLASSES), model='')
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            runs = [pool.submit(list, server.events(CHAT, body(5, 60, stream=True), 'sk-a'))
                    for _ in range(24)]
            self.wait_for(server, 'varve_lane_running')
            while (self.level(server, 'varve_lane_running') +
                   self.level(server, 'varve_lane_waiting')) < 20:
                time.sleep(0.01)
            server.signal(signal.SIGTERM)
            for run in runs:
                events = run.result()
                self.assertEqual(events[-1], '[DONE]')
                self.assertEqual(sum('"content"' in e for e in events), 60)
        self.assertEqual(server.wait(), 0)


if __name__ == '__main__':
    MODEL = sys.argv.pop(2)
    PROGRAM = sys.argv.pop(1)
    unittest.main()
