#!/usr/bin/env python3
"""Requests that have brought other servers down, each with the status it gets here. After each the
server still answers.

Usage: bad_requests_test.py PROGRAM MODEL
"""

import contextlib
import gzip
import json
import os
import socket
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_process import CLASSES, FAKE, KEYS, LIGHT, Server, merged

PROGRAM, MODEL = '', ''
CHAT, COMPLETIONS = '/v1/chat/completions', '/v1/completions'
ASK = {'messages': [{'role': 'user', 'content': 'hello'}], 'max_tokens': 2}
KEY = 'Authorization: Bearer sk-a\r\n'


def head(path=CHAT, method='POST', more='', host='localhost', key=KEY):
    return (f'{method} {path} HTTP/1.1\r\nHost: {host}\r\n{key}'
            f'Content-Type: application/json\r\n{more}').encode()


class BadTest(unittest.TestCase):
    tables, model = merged(FAKE, CLASSES, {'server': {'header_timeout_s': 2}}), ''

    @classmethod
    def setUpClass(cls):
        cls.server = Server(PROGRAM, cls.tables, KEYS, cls.model)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, code

    def tearDown(self):
        self.check_alive()

    def check_alive(self):
        # A model may end by itself when it draws at random.
        status, _, answer = self.server.request('POST', CHAT, {**ASK, 'ignore_eos': True}, 'sk-a')
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer['usage']['completion_tokens'], 2)

    def check(self, expected, body, path=CHAT, key='sk-a', param=None):
        """Sends it and compares status and param of the error."""
        with self.subTest(path=path, body=str(body)[:80]):
            headers = {'Content-Type': 'application/json'}
            status, _, answer = self.server.request('POST', path, body, key, headers, timeout=120)
            self.assertEqual(status, expected, str(answer)[:500])
            if expected >= 400:
                self.assertTrue(answer['error']['message'])
            if param is not None:
                self.assertEqual(answer['error']['param'], param)
            self.check_alive()

    def check_raw(self, expected, data, seconds=10):
        """The first answer's status to bytes as they are; what came back."""
        with self.subTest(data=data[:80]):
            got = self.server.raw(data, seconds)
            self.assertEqual(got[:12], f'HTTP/1.1 {expected}'.encode(), got[:300])
            self.check_alive()
            return got


class RequestTest(BadTest):
    def test_choices_fan_out(self):
        for n in (0, -1, 9, 129, 2**31, 2**63):
            self.check(400, {**ASK, 'n': n}, param='n')
        self.check(400, {'prompt': 'x', 'best_of': 10**9}, COMPLETIONS, param='best_of')
        self.check(400, {'prompt': ['x'] * 9}, COMPLETIONS, param='prompt')
        self.check(400, {'prompt': ['x'] * 100_000}, COMPLETIONS, param='prompt')
        self.check(400, {'prompt': [[1]] * 100_000}, COMPLETIONS, param='prompt')
        # Each is allowed; together they would be 64 choices.
        self.check(400, {'prompt': ['x'] * 8, 'n': 8}, COMPLETIONS)

    def test_numbers(self):
        for value in ('-1', '-2147483648', '9223372036854775808', '1e400', '-1e400', 'NaN',
                      'Infinity', '"1"', '1.5', 'true', '[]', '1' * 5000):
            for name in ('max_tokens', 'min_tokens', 'top_logprobs', 'n'):
                self.check(400, json.dumps(ASK)[:-1] + f',"{name}":{value}}}')
        for name, value in (('temperature', '-0.1'), ('temperature', '1e308'), ('top_p', '1.01'),
                            ('top_k', '-2'), ('seed', '18446744073709551616'), ('seed', '0.5'),
                            ('presence_penalty', '3'), ('repetition_penalty', '0'),
                            ('logit_bias', '{"1":1e9}'), ('logit_bias', '{"999999999":1}'),
                            ('stop', '["a",1]'), ('stop', json.dumps(['x'] * 17))):
            self.check(400, json.dumps(ASK)[:-1] + f',"{name}":{value}}}')
        self.check(400, {'prompt': [-1]}, COMPLETIONS)
        self.check(400, {'prompt': [2**31 - 1]}, COMPLETIONS)
        self.check(400, {'tokens': [2**31 - 1]}, '/detokenize')
        self.check(200, json.dumps(ASK)[:-1] + ',"seed":-9223372036854775808}')

    def test_objects_of_the_server_are_not_taken(self):
        self.check(200, {**ASK, 'chat_parser': '{"type":"root"}', 'n_discard': -1, 'id_slot': -7,
                         'cache_salt': '\ud7ff' * 1000, 'chat_template_kwargs': {'a': {'b': 1}}})
        self.check(400, {'prompt_embeds': 'AAAA', 'max_tokens': 1}, COMPLETIONS, param='prompt')
        self.check(400, {**ASK, 'tools': [{'type': 'function'}] * 129})
        status, _, answer = self.server.request(
            'POST', '/tokenize', {'prompt': 'x', 'chat_template': '{{ 1/0 }}'}, '')
        self.assertEqual(status, 401, answer)

    def test_json(self):
        text = json.dumps(ASK)[:-1]
        for bad in ('', '{', '[]', '"x"', 'null', text, text + ',}', '\ufeff' + text + '}',
                    text + '} x', text + ',"user":' + '[' * 100_000,
                    text + ',"user":' + '[' * 100_000 + ']' * 100_000 + '}',
                    text + ',"user":' + '{"a":' * 1000 + '1' + '}' * 1001,
                    text + ',"n":1,"n":2}', text + ',"user":"\\ud800"}',
                    text + ',"user":"a\\u0000b"}', text + ',"user":1e999}',
                    '{' + ','.join(f'"k{i}":{i}' for i in range(500_000)) + '}',
                    '{"messages":[' + '0,' * 3_000_000 + '0]}'):
            self.check(400, bad.encode())
        for bad in (b'\xff', b'\xc0\xaf', b'\xed\xa0\x80', b'\xf5\x80\x80\x80', b'\xe2\x82', b'\0'):
            self.check(400, b'{"messages":[{"role":"user","content":"' + bad + b'"}]}')
        self.check(400, json.dumps(ASK).encode('utf-16'))

    def test_content(self):
        with contextlib.closing(socket.create_server(('127.0.0.1', 0))) as outside:
            outside.settimeout(0.2)
            url = f'http://127.0.0.1:{outside.getsockname()[1]}/x.png'
            for part in ({'type': 'image_url', 'image_url': {'url': url}},
                         {'type': 'input_audio', 'input_audio': {'data': url}}):
                self.check(400, {'messages': [{'role': 'user', 'content': [part]}]})
            with self.assertRaises(TimeoutError):
                outside.accept()
        self.check(400, {'messages': []})
        self.check(400, {'messages': [{'role': 'root', 'content': 'x'}]})
        self.check(400, {'messages': [{'role': 'user', 'content': {'a': 1}}]})
        self.check(400, {'messages': [{'role': 'user', 'content': 'x'}] * 100_000})
        self.check(400, {'messages': [{'role': 'user', 'content': 'word ' * 100_000}]})
        self.check(400, {**ASK, 'context': '../../etc/passwd' * 50})
        self.check(404, {**ASK, 'context': '../../etc/passwd'})

    def test_model_names_add_no_series(self):
        before = len(self.server.metrics('sk-admin'))
        with socket.create_connection(('127.0.0.1', self.server.port), timeout=60) as connection:
            answers = connection.makefile('rb')
            for start in range(0, 10_000, 50):
                batch = b''
                for i in range(start, start + 50):
                    body = json.dumps({**ASK, 'model': f'name-{i}', 'max_tokens': 1,
                                       'service_tier': 'auto', 'user': f'u{i}'}).encode()
                    batch += head(more=f'Content-Length: {len(body)}\r\n\r\n') + body
                connection.sendall(batch)
                for _ in range(50):
                    self.assertEqual(answers.readline(), b'HTTP/1.1 200 OK\r\n')
                    length = 0
                    while (line := answers.readline()) != b'\r\n':
                        if line.lower().startswith(b'content-length:'):
                            length = int(line.split(b':')[1])
                    answers.read(length)
        for i in range(200):
            self.assertEqual(self.server.request('GET', f'/no/{i}', key='sk-a')[0], 404)
            self.server.request('POST', CHAT, {**ASK, 'service_tier': f't{i}'}, 'sk-a')
            self.server.request('GET', f'/v1/contexts/c{i}', key='sk-a')
        after = self.server.metrics('sk-admin')
        # Of routes and outcomes that were not seen before: no more than a few.
        self.assertLess(len(after) - before, 200)
        self.assertFalse([k for k in after if 'name-' in k or '/no/' in k or '/c1' in k])


class HttpTest(BadTest):
    def test_chunks(self):
        chunked = head(more='Transfer-Encoding: chunked\r\n\r\n')
        for size in (b'-2', b'+2', b'0x2', b'10000000000000000', b'', b' 2', b'g'):
            self.check_raw(400, chunked + size + b'\r\n{}\r\n0\r\n\r\n')
        self.check_raw(413, chunked + b'ffffffffffffffff\r\n{}\r\n0\r\n\r\n')
        self.check_raw(400, chunked + b'2;' + b'x' * 200_000)
        body = json.dumps(ASK).encode() + b' ' * 50_000
        one_by_one = b''.join(b'1\r\n' + body[i:i + 1] + b'\r\n' for i in range(len(body)))
        self.check_raw(200, chunked.replace(b'\r\n\r\n', b'\r\nConnection: close\r\n\r\n') +
                       one_by_one + b'0\r\n\r\n')

    def test_endless_chunked_body(self):
        got = b''
        with socket.create_connection(('127.0.0.1', self.server.port), timeout=30) as connection:
            connection.sendall(head(more='Transfer-Encoding: chunked\r\n\r\n'))
            sent, part = 0, b'10000\r\n' + b' ' * 65536 + b'\r\n'
            with contextlib.suppress(ConnectionError):
                while sent < 64 << 20:
                    connection.sendall(part)
                    sent += 65536
            with contextlib.suppress(ConnectionError):
                got = connection.recv(65536)
        self.assertLess(sent, 64 << 20)
        self.assertTrue(got == b'' or got.startswith(b'HTTP/1.1 413'), got[:100])

    def test_lengths_and_codings(self):
        body = json.dumps(ASK).encode()
        for more in ('Content-Length: 10\r\nContent-Length: 11\r\n', 'Content-Length: -1\r\n',
                     'Content-Length: 1e3\r\n', 'Content-Length: 99999999999999999999999\r\n',
                     'Content-Length: 4\r\nTransfer-Encoding: chunked\r\n',
                     'Transfer-Encoding: gzip, chunked\r\n', 'Transfer-Encoding: xchunked\r\n'):
            self.check_raw(400, head(more=more + '\r\n') + body)
        self.check_raw(413, head(more='Content-Length: 1000000000000\r\n\r\n'))
        bomb = gzip.compress(b' ' * (8 << 20) + body)
        self.check_raw(415, head(more='Content-Encoding: gzip\r\nConnection: close\r\n'
                                 f'Content-Length: {len(bomb)}\r\n\r\n') + bomb)
        self.check_raw(415, head(more=f'Connection: close\r\nContent-Length: {len(body)}\r\n\r\n')
                       .replace(b'application/json', b'text/plain') + body)

    def test_heads(self):
        self.check_raw(431, head(more='X-Long: ' + 'x' * (1 << 20) + '\r\n\r\n'))
        self.check_raw(431, head(more=''.join(f'X-{i}: 1\r\n' for i in range(10_000)) + '\r\n'))
        self.check_raw(431, head(more=''.join(f'X-{i}: 1\r\n' for i in range(200)) + '\r\n'))
        self.check_raw(431, b'GET /' + b'x' * (1 << 20) + b' HTTP/1.1\r\nHost: a\r\n\r\n')
        for data in (b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03' * 20, b'\0' * 1000,
                     b'GET / HTTP/9.9\r\n\r\n', b'GET /\r\n\r\n', b'\r\n' * 1000 + b'x\r\n\r\n',
                     b'GET / HTTP/1.1\r\nHost: localhost\r\nBad Name: x\r\n\r\n',
                     b'GET / HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c\x00d\r\n\r\n',
                     b'GET / HTTP/1.1\r\n\r\n', b'GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n'):
            with self.subTest(data=data[:60]):
                got = self.server.raw(data)
                self.assertIn(got[:12], (b'HTTP/1.1 400', b'HTTP/1.1 505', b''), got[:200])
                self.check_alive()

    def test_slow_head_and_slow_body_end(self):
        for start in (b'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ',
                      head(more='Content-Length: 100000\r\n\r\n')):
            with self.subTest(start=start[-30:]):
                with contextlib.ExitStack() as stack:
                    slow = [stack.enter_context(contextlib.closing(socket.create_connection(
                        ('127.0.0.1', self.server.port), timeout=30))) for _ in range(50)]
                    for connection in slow:
                        connection.sendall(start)
                    end, answers = time.monotonic() + 30, [b''] * len(slow)
                    while not all(answers) and time.monotonic() < end:
                        self.check_alive()
                        for i, connection in enumerate(slow):
                            if answers[i]:
                                continue
                            with contextlib.suppress(ConnectionError):
                                connection.sendall(b'x')
                            connection.settimeout(0.001)
                            with contextlib.suppress(TimeoutError):
                                answers[i] = connection.recv(4096)
                    self.assertEqual({a[:12] for a in answers}, {b'HTTP/1.1 408'})

    def test_pipelined_requests_are_answered_in_order(self):
        data = b''
        for i in range(30):
            body = json.dumps({**ASK, 'max_tokens': 1 + i % 3}).encode()
            data += head(more=f'X-Request-Id: p{i}\r\nContent-Length: {len(body)}\r\n\r\n') + body
        got = self.server.raw(data + b'GET /livez HTTP/1.1\r\nHost: localhost\r\n'
                              b'Connection: close\r\n\r\n').decode()
        places = [got.index(f'X-Request-Id: p{i}\r\n') for i in range(30)]
        self.assertEqual(places, sorted(places))
        self.assertEqual(got.count('HTTP/1.1 200'), 31)

    def test_a_body_that_holds_a_request_is_a_body(self):
        inner = head(more='Content-Length: 2\r\n\r\n') + b'{}'
        got = self.server.raw(
            head(more=f'Connection: close\r\nContent-Length: {len(inner)}\r\n\r\n') + inner)
        self.assertEqual(got.count(b'HTTP/1.1'), 1)

    def test_host_and_origin(self):
        body = json.dumps(ASK).encode()
        for host in ('evil.example', 'evil.example:8080', 'localhost.evil.example',
                     '127.0.0.1.evil.example', 'localhost@evil.example', '[::1].evil'):
            self.check_raw(421, head(host=host, more=f'Connection: close\r\n'
                                     f'Content-Length: {len(body)}\r\n\r\n') + body)
        for host in ('localhost', '127.0.0.1:1234', '[::1]'):
            self.check_raw(200, head(host=host, more=f'Connection: close\r\n'
                                     f'Content-Length: {len(body)}\r\n\r\n') + body)
        got = self.server.raw(
            head(key='', more='Origin: http://evil.example\r\nConnection: close\r\n'
                 f'Content-Length: {len(body)}\r\n\r\n') + body)
        self.assertTrue(got.startswith(b'HTTP/1.1 403'), got[:200])
        self.assertNotIn(b'access-control', got.lower())

    def test_no_route_without_key(self):
        _, _, schema = self.server.request('GET', '/openapi.json')
        n_closed = 0
        for path, methods in schema['paths'].items():
            for method, operation in methods.items():
                public = operation.get('security') == []
                path = path.replace('{id}', 'x').replace('{name}', 'x')
                for key in ('', 'sk-', 'sk-a\0', 'sk-ax', 'SK-A', 'x' * 10_000):
                    with self.subTest(method=method, path=path, key=key[:10]):
                        got = self.server.raw(head(path, method.upper(), key=f'X-Api-Key: {key}\r\n'
                                              if key else '', more='Connection: close\r\n'
                                              'Content-Length: 2\r\n\r\n') + b'{}')
                        status = int(got[9:12])
                        if public:
                            self.assertIn(status, (200, 400), got[:200])
                        else:
                            self.assertIn(status, (401, 400) if '\0' in key else (401,), got[:200])
                            n_closed += 1
        self.assertGreater(n_closed, 100)

    def test_admin_routes_refuse_other_keys(self):
        for method, path in (('GET', '/debug/attention'), ('GET', '/admin/experiments'),
                             ('POST', '/admin/reload'), ('POST', '/admin/experiments/x/stop')):
            body = {} if method == 'POST' else None
            self.assertEqual(self.server.request(method, path, body, 'sk-a')[0], 403, path)

    def test_paths(self):
        for path in ('/../../etc/passwd', '/v1/../../etc/passwd', '/%2e%2e/%2e%2e/etc/passwd',
                     '/v1/contexts/..%2f..%2fetc%2fpasswd', '/v1/contexts/%2e%2e',
                     '/v1/contexts/%c0%ae%c0%ae', '/v1/contexts/%EF%BC%8E%EF%BC%8E',
                     '/v1//contexts', '/v1/contexts/x%00y', '/v1/contexts/%',
                     '/v1/contexts/%zz', '//etc/passwd',
                     '/v1/contexts/' + 'x' * 5000, '/v1/models/../../..', '/openapi.json/'):
            with self.subTest(path=path):
                got = self.server.raw(head(path, 'GET', more='Connection: close\r\n\r\n'))
                allowed = (b'400', b'404') if 'models' not in path else (b'400', b'404', b'200')
                self.assertIn(got[9:12], allowed, got[:200])
                self.assertNotIn(b'root:', got)
        for target in (b'http://evil.example/v1/models', b'*', b'evil.example:443'):
            got = self.server.raw(b'GET ' + target + b' HTTP/1.1\r\nHost: localhost\r\n' +
                                  KEY.encode() + b'Connection: close\r\n\r\n')
            self.assertIn(got[9:12], (b'400', b'404'), got[:200])


class ModelTest(BadTest):
    """Texts and grammars that have overflowed stacks, on a real model."""

    tables = merged(LIGHT, CLASSES, {'class.standard': {'max_prompt_tokens': 1024}})

    @classmethod
    def setUpClass(cls):
        cls.model = MODEL
        super().setUpClass()

    def test_grammars(self):
        nested = 'root ::= ' + '(' * 20_000 + '"a"' + ')' * 20_000
        deep = {'type': 'string'}
        for _ in range(40):
            deep = {'type': 'array', 'items': deep}
        wide = {'type': 'object', 'properties': {f'p{i}': {'type': 'string', 'maxLength': 10**9}
                                                 for i in range(3000)}}
        for grammar in ('nothing', 'root ::= root', 'root ::= a\na ::= b\nb ::= a',
                        'root ::= [', 'root ::= "a"{1000000000}', 'root ::= (("a"*)*)*{99999}',
                        nested, 'root ::= "' + 'x' * 300_000 + '"', 'root ::= undefined'):
            self.check(400, {**ASK, 'grammar': grammar}, param='grammar')
        for schema in ({'type': 'strange'}, {'$ref': '#/nowhere'}, {'$ref': 'http://127.0.0.1/x'},
                       {'type': 'array', 'minItems': 10**9}, {'pattern': '(', 'type': 'string'},
                       {'type': 'string', 'pattern': '^(a|aa)+$' * 5000}, {'enum': []}):
            with self.subTest(schema=str(schema)[:60]):
                body = {**ASK, 'json_schema': schema}
                status, _, answer = self.server.request('POST', CHAT, body, 'sk-a')
                self.assertIn(status, (200, 400), str(answer)[:300])
        for schema in (deep, wide, {'$ref': '#/$defs/a', '$defs': {'a': {'$ref': '#/$defs/a'}}}):
            with self.subTest(schema=str(schema)[:60]):
                body = {**ASK, 'json_schema': schema}
                status, _, answer = self.server.request('POST', CHAT, body, 'sk-a')
                self.assertIn(status, (200, 400), str(answer)[:300])

    def test_long_runs(self):
        for text in ('A' * 131_072, '\n' * 1_000_000, 'e' + '\u0301' * 100_000, '\u0e33' * 50_000,
                     '1' * 131_072, ' ' * 1_000_000, '!' * 131_072, '\U0001f468\u200d' * 50_000,
                     '<|im_start|>' * 20_000, 'don\'t' * 50_000, '\u3042' * 100_000,
                     '\x01' * 100_000):
            with self.subTest(text=ascii(text[:10])):
                status, _, answer = self.server.request('POST', '/tokenize', {'prompt': text},
                                                        'sk-a', timeout=120)
                self.assertEqual(status, 200, str(answer)[:300])
                tokens = answer['tokens']
                status, _, answer = self.server.request('POST', '/detokenize', {'tokens': tokens},
                                                        'sk-a', timeout=120)
                self.assertEqual((status, answer['content'] == text), (200, True))
                self.check_alive()

    def test_long_runs_as_prompts(self):
        for text in ('A' * 131_072, '\n' * 1_000_000):
            self.check(400, {'messages': [{'role': 'user', 'content': text}]}, param='messages')

    def test_others_are_answered_meanwhile(self):
        texts = ['A' * 1_000_000, '\n' * 4_000_000]
        threads = [threading.Thread(target=self.server.request, args=(
            'POST', '/tokenize', {'prompt': text}, 'sk-b', None, 240)) for text in texts]
        for thread in threads:
            thread.start()
        self.check_alive()
        for thread in threads:
            thread.join()


if __name__ == '__main__':
    MODEL = sys.argv.pop(2)
    PROGRAM = sys.argv.pop(1)
    unittest.main()
