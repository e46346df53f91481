#!/usr/bin/env python3
"""Benchmark clients against the server: llama-benchy itself, and the requests that guidellm, vLLM's
`bench serve` and aiperf send (they bring gigabytes of other software: their shapes are replayed).

Usage: benchmarks_test.py PROGRAM
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_process import FAKE, Server, merged

PROGRAM = ''
BOOK = 'http://book.invalid/book.txt'


class BenchmarksTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(PROGRAM, merged(FAKE, {'runtime': {'trained_tokens': 32768}}))

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def test_llama_benchy(self):
        from tokenizers import Tokenizer, models, pre_tokenizers
        words = {f'w{i}': i for i in range(500)}
        tokenizer = Tokenizer(models.WordLevel({**words, '?': 500}, unk_token='?'))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        with tempfile.TemporaryDirectory() as home:
            tokenizer.save(os.path.join(home, 'tokenizer.json'))
            cache = os.path.join(home, '.cache', 'llama-benchy')
            os.makedirs(cache)
            name = hashlib.md5(BOOK.encode()).hexdigest() + '.txt'
            with open(os.path.join(cache, name), 'w', encoding='utf-8') as book:
                book.write(' '.join(f'w{i * 7 % 500}' for i in range(20000)))
            out = os.path.join(home, 'result.json')
            run = subprocess.run(
                [sys.executable, '-m', 'llama_benchy', '--base-url', self.server.url + '/v1',
                 '--model', 'any', '--tokenizer', home, '--book-url', BOOK, '--pp', '64', '--tg',
                 '16', '--depth', '0', '128', '--runs', '2', '--concurrency', '1', '4',
                 '--skip-coherence', '--enable-prefix-caching', '--latency-mode', 'generation',
                 '--exit-on-first-fail', '--exact-tg', '--format', 'json', '--save-result', out],
                env={**os.environ, 'HOME': home, 'HF_HUB_OFFLINE': '1'}, capture_output=True,
                text=True, timeout=240)
            self.assertEqual(run.returncode, 0, run.stdout[-3000:] + run.stderr[-3000:])
            with open(out, encoding='utf-8') as f:
                benchmarks = json.load(f)['benchmarks']
        self.assertGreaterEqual(len(benchmarks), 4)

    def tokens_of(self, path, body):
        """Content chunks of a streamed answer, and its last usage."""
        content, usage = 0, None
        for data in self.server.events(path, body):
            if data == '[DONE]':
                break
            event = json.loads(data)
            usage = event.get('usage') or usage
            for choice in event['choices']:
                text = choice.get('text', choice.get('delta', {}).get('content'))
                content += text is not None and choice.get('finish_reason') is None
        return content, usage

    def test_guidellm(self):
        self.assertEqual(self.server.request('GET', '/health')[0], 200)
        model = self.server.request('GET', '/v1/models')[2]['data'][0]['id']
        options = {'include_usage': True, 'continuous_usage_stats': True}
        common = {'model': model, 'stream': True, 'stream_options': options, 'stop': None,
                  'ignore_eos': True}
        content, usage = self.tokens_of('/v1/completions', {
            **common, 'prompt': 'one two three', 'max_tokens': 12})
        self.assertEqual((content, usage['completion_tokens']), (12, 12))
        content, usage = self.tokens_of('/v1/chat/completions', {
            **common, 'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 'hi'}]}],
            'max_completion_tokens': 12})
        self.assertEqual((content, usage['completion_tokens']), (12, 12))

    def test_vllm_bench_serve(self):
        content, usage = self.tokens_of('/v1/completions', {
            'model': 'any', 'prompt': list(range(10, 40)), 'repetition_penalty': 1.0,
            'temperature': 0.0, 'max_tokens': 10, 'logprobs': None, 'stream': True,
            'stream_options': {'include_usage': True}, 'ignore_eos': True})
        self.assertEqual((content, usage['completion_tokens']), (10, 10))
        self.assertEqual(usage['prompt_tokens'], 30)
        content, usage = self.tokens_of('/v1/chat/completions', {
            'model': 'any', 'temperature': 0.0, 'max_completion_tokens': 10, 'stream': True,
            'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 'one two'}]}],
            'stream_options': {'include_usage': True}, 'ignore_eos': True})
        self.assertEqual((content, usage['completion_tokens']), (10, 10))

    def test_aiperf(self):
        status, headers, answer = self.server.request('POST', '/v1/chat/completions', {
            'model': 'any', 'messages': [{'role': 'user', 'content': 'hi', 'name': 'me'}],
            'max_completion_tokens': 5, 'ignore_eos': True, 'stream': False},
            headers={'X-Request-ID': 'abc-1'})
        self.assertEqual((status, headers['X-Request-Id']), (200, 'abc-1'))
        self.assertEqual(answer['usage']['completion_tokens'], 5)


if __name__ == '__main__':
    PROGRAM = sys.argv.pop(1)
    unittest.main()
