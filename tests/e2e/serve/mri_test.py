#!/usr/bin/env python3
"""The runtime interface over HTTP, with what any language has: HTTP, JSON, bytes.

Usage: mri_test.py PROGRAM MODEL
"""

import array
import json
import os
import struct
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_process import CLASSES, EXACT, KEYS, Server, merged

PROGRAM, MODEL = '', ''
PROMPT = 'The first ten numbers are one, two, three, four, five,'
BINARY = 'application/octet-stream'
PROMPT_FLAG, MORE_FLAG = 1, 2


def frame(body, *tensors):
    """The binary form: each tensor an array that `body` has a {"dtype", "shape", "offset"} for."""
    text = json.dumps(body).encode()
    text += b' ' * (-len(text) % 8)
    return b'MRIF' + struct.pack('<III', 1, len(text), 0) + text + b''.join(
        t.tobytes() for t in tensors)


def unframe(data):
    assert data[:4] == b'MRIF', data[:100]
    version, length, zero = struct.unpack_from('<III', data, 4)
    assert (version, length % 8, zero) == (1, 0, 0)
    return json.loads(data[16:16 + length]), data[16 + length:]


class MriTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(PROGRAM, merged(EXACT, CLASSES), KEYS, MODEL)
        _, _, answer = cls.server.request('POST', '/tokenize', {'prompt': PROMPT}, 'sk-a')
        cls.tokens = answer['tokens']

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, code

    def call(self, method, body, expected=200, key='sk-a', version='1.1', headers=None):
        sent = {'X-MRI-Version': version} if version else {}
        status, got, answer = self.server.request('POST', f'/mri/{method}', body, key,
                                                  {**sent, **(headers or {})})
        self.assertEqual(status, expected, str(answer)[:500])
        self.assertEqual(got['X-MRI-Supported'], '1.0-1.1')
        self.assertEqual(got['X-MRI-Version'], version or '1.0')
        return answer

    def release(self, ctx, key='sk-a'):
        return self.server.request('DELETE', f'/mri/contexts/{ctx}', key=key)[0]

    def greedy(self, n):
        body = {'prompt': self.tokens, 'max_tokens': n, 'temperature': 0, 'ignore_eos': True,
                'cache_prompt': False}
        status, _, answer = self.server.request('POST', '/v1/completions', body, 'sk-a')
        self.assertEqual(status, 200, answer)
        return answer['choices'][0]['text']

    def text(self, tokens):
        return self.server.request('POST', '/detokenize', {'tokens': tokens}, 'sk-a')[2]['content']

    def test_generation_is_that_of_completions(self):
        made = self.call('init_context', {'tokens': self.tokens, 'logits': True, 'context_key': 7})
        ctx, logits, said = made['ctx'], made['logits'], []
        for step in range(12):
            said.append(max(range(len(logits)), key=logits.__getitem__))
            answer = self.call('forward_step', {'step_id': step, 'seqs': [
                {'ctx': ctx, 'tokens': [said[-1]], 'logits': True}]})
            (seq,) = answer['seqs']
            self.assertEqual((seq['status'], seq['position'], answer['n_tokens']),
                             (0, len(self.tokens) + step, 1))
            logits = seq['logits']
        self.assertEqual(self.text(said), self.greedy(12))
        self.assertEqual(self.release(ctx), 200)
        self.assertEqual(self.release(ctx), 404)

    def test_binary_form_says_the_same(self):
        tokens = array.array('i', self.tokens)
        body = {'tokens': {'dtype': 'i32', 'shape': [len(tokens)], 'offset': 0}, 'logits': True}
        binary = {'Content-Type': BINARY, 'Accept': BINARY}
        answer, data = unframe(self.call('init_context', frame(body, tokens), headers=binary))
        self.assertEqual(answer['logits']['dtype'], 'f32')
        (n,), offset = answer['logits']['shape'], answer['logits']['offset']
        logits = array.array('f', data[offset:offset + 4 * n])
        plain = self.call('init_context', {'tokens': self.tokens, 'logits': True})
        self.assertEqual(logits, array.array('f', plain['logits']))
        # All rows of a step at once: of a token in the middle the same as of the last alone.
        half = len(tokens) // 2
        whole, _ = unframe(self.call('init_context', frame({}), headers=binary))
        step = {'seqs': [{'ctx': whole['ctx'], 'all_logits': True, 'flags': PROMPT_FLAG,
                          'tokens': {'dtype': 'i32', 'shape': [len(tokens)], 'offset': 0}}]}
        rows, data = unframe(self.call('forward_step', frame(step, tokens), headers=binary))
        tensor = rows['seqs'][0]['logits']
        self.assertEqual(tensor['shape'], [len(tokens), n])
        all_rows = array.array('f', data[tensor['offset']:tensor['offset'] + 4 * n * len(tokens)])
        short = self.call('init_context', {'tokens': self.tokens[:half], 'logits': True})['logits']
        row = all_rows[n * (half - 1):n * half]
        self.assertLess(max(abs(a - b) for a, b in zip(row, short)), 1e-3)
        for ctx in (answer['ctx'], plain['ctx'], whole['ctx']):
            self.assertEqual(self.release(ctx), 200)

    def test_summary_evict_and_state(self):
        many = self.tokens * 12
        ctx = self.call('init_context', {'tokens': many})['ctx']
        summary = self.call('get_kv_summary', {'ctx': ctx})
        self.assertEqual(sum(b['n_tokens'] for b in summary['out']), len(many))
        self.assertEqual(summary['n_out'], len(summary['out']))
        step = {'seqs': [{'ctx': ctx, 'tokens': self.tokens[:1]}]}
        self.call('forward_step', step)
        error = self.call('get_kv_summary', {'ctx': ctx}, 409)
        self.assertEqual(error['error']['code'], 'invalid_state')
        evict = {'ctx': ctx, 'request_id': 5, 'granularity': 2,
                 'ranges': [{'first': 32, 'count': 32}]}
        old = self.call('evict_kv', evict, version='')
        self.assertEqual(set(old), {'n_evicted', 'bytes_freed'})
        self.assertEqual(old['n_evicted'], 32)
        evict['ranges'] = [{'first': 64, 'count': 32}]
        new = self.call('evict_kv', evict)
        self.assertEqual(set(new), {'n_evicted', 'bytes_freed', 'confirm_state', 'n_refused',
                                    'confirm_epoch'})
        after = self.call('get_kv_summary', {'ctx': ctx})
        self.assertEqual(sum(b['n_tokens'] for b in after['out']), len(many) + 1 - 64)
        self.assertGreater(after['kv_epoch'], summary['kv_epoch'])
        self.assertEqual(self.release(ctx), 200)

    def test_versions(self):
        for version, served in (('1.0', '1.0'), ('1.1', '1.1'), ('1.7', '1.1')):
            _, headers, _ = self.server.request('POST', '/mri/get_kv_summary', {'ctx': 99}, 'sk-a',
                                                {'X-MRI-Version': version})
            self.assertEqual(headers['X-MRI-Version'], served)
        for version, code in (('2.0', 'MRI-E012'), ('0.9', 'MRI-E012'), ('1', 'MRI-E010'),
                              ('1.1.1', 'MRI-E010'), ('x', 'MRI-E010'), ('01.1', 'MRI-E010')):
            status, _, answer = self.server.request('POST', '/mri/init_context', {}, 'sk-a',
                                                    {'X-MRI-Version': version})
            self.assertEqual((status, answer['error']['code']), (400, code), version)

    def test_contexts_belong_to_their_tenant(self):
        ctx = self.call('init_context', {'tokens': self.tokens})['ctx']
        step = {'seqs': [{'ctx': ctx, 'tokens': self.tokens[:1]}]}
        self.call('forward_step', step, 404, key='sk-b')
        self.call('get_kv_summary', {'ctx': ctx}, 404, key='sk-b')
        self.call('evict_kv', {'ctx': ctx, 'ranges': [{'first': 0, 'count': 1}]}, 404, key='sk-b')
        self.assertEqual(self.release(ctx, 'sk-b'), 404)
        self.call('forward_step', step)
        self.assertEqual(self.release(ctx), 200)

    def test_bad_calls(self):
        for method, body in (
                ('init_context', {'tokens': [-1]}), ('init_context', {'tokens': [10**9]}),
                ('init_context', {'tokens': 'text'}), ('init_context', {'max_tokens': -1}),
                ('init_context', {'logits': True}), ('forward_step', {'seqs': []}),
                ('forward_step', {'seqs': [{'ctx': 0, 'tokens': [1]}]}),
                ('evict_kv', {'ctx': 1, 'ranges': []}),
                ('evict_kv', {'ctx': 1, 'ranges': [{'first': 2**64 - 1, 'count': 2}]})):
            with self.subTest(method=method, body=body):
                self.call(method, body, 400)
        tensor = {'dtype': 'i32', 'shape': [3], 'offset': 0}
        headers = {'Content-Type': BINARY}
        for bad in (b'', b'MRIF', frame({'tokens': tensor}), frame({'tokens': tensor})[:-1],
                    b'MRIX' + frame({})[4:], b'MRIF' + struct.pack('<III', 1, 2**32 - 8, 0) + b'{}',
                    frame({'tokens': {**tensor, 'offset': 2**62}}, array.array('i', [1] * 3)),
                    frame({'tokens': {**tensor, 'shape': [2**62]}}, array.array('i', [1] * 3)),
                    frame({'tokens': {**tensor, 'offset': 2}}, array.array('i', [1] * 4))):
            with self.subTest(bad=bad[:60]):
                self.call('init_context', bad, 400, headers=headers)

    def test_limit_of_contexts(self):
        made = [self.call('init_context', {}, key='sk-b')['ctx'] for _ in range(16)]
        self.call('init_context', {}, 429, key='sk-b')
        for ctx in made:
            self.assertEqual(self.release(ctx, 'sk-b'), 200)


if __name__ == '__main__':
    MODEL = sys.argv.pop(2)
    PROGRAM = sys.argv.pop(1)
    unittest.main()
