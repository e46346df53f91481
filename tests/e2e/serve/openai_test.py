#!/usr/bin/env python3
"""The openai package against the server, on the fake runtime.

Usage: openai_test.py PROGRAM
"""

import concurrent.futures
import os
import sys
import unittest

import openai

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_process import CLASSES, FAKE, KEYS, Server, merged

PROGRAM = ''
ASK = [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Who may sign?'}]


class OpenAiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(PROGRAM, merged(FAKE, CLASSES), KEYS)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, code

    def client(self, key='sk-a', **options):
        return openai.OpenAI(base_url=self.server.url + '/v1', api_key=key, timeout=30, **options)

    def test_chat(self):
        answer = self.client().chat.completions.create(model='any', messages=ASK, max_tokens=8)
        self.assertTrue(answer.choices[0].message.content)
        self.assertEqual(answer.choices[0].message.role, 'assistant')
        self.assertEqual(answer.choices[0].finish_reason, 'length')
        self.assertEqual(answer.usage.completion_tokens, 8)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 8)

    def test_stream_has_one_chunk_per_token_and_the_same_text(self):
        whole = self.client().chat.completions.create(model='any', messages=ASK, max_tokens=9)
        chunks = list(self.client().chat.completions.create(
            model='any', messages=ASK, max_tokens=9, stream=True,
            stream_options={'include_usage': True}))
        content = [c for c in chunks if c.choices and c.choices[0].delta.content is not None]
        self.assertEqual(''.join(c.choices[0].delta.content for c in content),
                         whole.choices[0].message.content)
        self.assertEqual(len([c for c in content if not c.choices[0].finish_reason]), 9)
        self.assertEqual(chunks[0].choices[0].delta.role, 'assistant')
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 9)
        self.assertTrue(all(c.usage is None for c in chunks[:-1]))

    def test_completions(self):
        answer = self.client().completions.create(
            model='any', prompt=['one two three', 'four five'], max_tokens=4, n=2)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2, 3])
        self.assertEqual(answer.usage.completion_tokens, 16)

    def test_echo_and_logprobs(self):
        answer = self.client().completions.create(
            model='any', prompt='one two three', max_tokens=1, echo=True, logprobs=1)
        logprobs = answer.choices[0].logprobs
        self.assertEqual(len(logprobs.tokens), answer.usage.prompt_tokens + 1)
        self.assertIsNone(logprobs.token_logprobs[0])
        self.assertTrue(all(p <= 0 for p in logprobs.token_logprobs[1:]))
        self.assertEqual(''.join(logprobs.tokens), answer.choices[0].text)

    def test_models(self):
        models = self.client().models.list().data
        self.assertEqual(len(models), 1)
        self.assertEqual(self.client().models.retrieve(models[0].id).id, models[0].id)

    def test_embeddings_say_why_not(self):
        with self.assertRaises(openai.APIStatusError) as caught:
            self.client(max_retries=0).embeddings.create(model='any', input='text')
        self.assertEqual(caught.exception.status_code, 501)

    def test_errors_have_types(self):
        with self.assertRaises(openai.AuthenticationError):
            self.client('sk-wrong').models.list()
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client().chat.completions.create(model='any', messages=ASK, temperature=-1)
        self.assertEqual(caught.exception.param, 'temperature')
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client().completions.create(model='any', prompt='word ' * 50000, max_tokens=1)
        self.assertEqual(caught.exception.code, 'context_length_exceeded')

    def test_service_tier_is_what_the_key_allows(self):
        answer = self.client('sk-a').chat.completions.create(
            model='any', messages=ASK, max_tokens=1, service_tier='priority')
        self.assertEqual(answer.service_tier, 'priority')
        with self.assertRaises(openai.PermissionDeniedError):
            self.client('sk-b').chat.completions.create(
                model='any', messages=ASK, max_tokens=1, service_tier='priority')


class FullQueueTest(unittest.TestCase):
    def test_client_comes_back_after_429(self):
        tables = merged(FAKE, {'runtime': {'delay_ms': 20}}, CLASSES, {
            'stack.main': {'concurrency': 1, 'concurrency_max': 1, 'queue_max': 2}})
        server = Server(PROGRAM, tables, KEYS)
        self.addCleanup(server.stop)

        def ask(retries):
            client = openai.OpenAI(base_url=server.url + '/v1', api_key='sk-a', max_retries=retries)
            return client.chat.completions.create(model='any', messages=ASK, max_tokens=5)

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            patient = [pool.submit(ask, 20) for _ in range(6)]
            hasty = [pool.submit(ask, 0) for _ in range(6)]
            self.assertTrue(all(f.result().choices for f in patient))
            refused = [f for f in hasty if isinstance(f.exception(), openai.RateLimitError)]
        self.assertTrue(refused)
        self.assertIn('retry-after', refused[0].exception().response.headers)


if __name__ == '__main__':
    PROGRAM = sys.argv.pop(1)
    unittest.main()
