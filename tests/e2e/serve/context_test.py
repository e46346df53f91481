#!/usr/bin/env python3
"""Documents that are registered once, beginnings that are read once, and what a request may ask for
beside its text; on a real model with the exact stack in f32.

Usage: context_test.py PROGRAM MODEL DOCUMENT
"""

import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_process import CLASSES, EXACT, KEYS, Server, merged

PROGRAM, MODEL, DOCUMENT = '', '', ''
CHAT = '/v1/chat/completions'
N_BYTES = 9000
BLOCK = 32
QUESTIONS = ('What is this document about? Answer in one sentence.',
             'Which operating system does it describe?')


def document():
    with open(DOCUMENT, encoding='utf-8') as text:
        return text.read(N_BYTES)


def user(text):
    return [{'role': 'user', 'content': text}]


class ContextTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(PROGRAM, merged(EXACT, CLASSES, {'server': {'contexts_max': 2}}), KEYS,
                            MODEL)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, code

    def ask(self, messages, expected=200, key='sk-a', headers=None, **more):
        body = {'messages': messages, 'max_tokens': 16, 'temperature': 0, **more}
        status, got, answer = self.server.request('POST', CHAT, body, key, headers, timeout=240)
        self.assertEqual(status, expected, answer)
        return (answer, got) if headers is not None else answer

    def register(self, expected=200, key='sk-a', **body):
        status, _, answer = self.server.request('POST', '/v1/contexts', body, key, timeout=240)
        self.assertEqual(status, expected, answer)
        return answer

    def forget(self, context, key='sk-a'):
        return self.server.request('DELETE', f'/v1/contexts/{context}', key=key)[0]

    def said(self, answer):
        return answer['choices'][0]['message']['content']

    def cached(self, answer):
        return answer['usage']['prompt_tokens_details']['cached_tokens']

    def test_a_document_is_read_once(self):
        text = document()
        context = self.register(text=text, name='faq')
        self.assertEqual((context['object'], context['name'], context['cached_tokens']),
                         ('context', 'faq', 0))
        self.assertGreater(context['tokens'], 1000)
        for question in QUESTIONS:
            with_context = self.ask(user(question), context=context['id'])
            inline = self.ask(user(f'{text}\n\n{question}'), cache_prompt=False)
            self.assertEqual(self.said(with_context), self.said(inline))
            self.assertIn('debian', self.said(with_context).lower())
            self.assertEqual(with_context['usage']['prompt_tokens'],
                             inline['usage']['prompt_tokens'])
            self.assertGreater(self.cached(with_context), context['tokens'] - BLOCK)
            self.assertLessEqual(self.cached(with_context), context['tokens'])
            self.assertEqual(self.cached(inline), 0)
        self.check_of_others(context['id'], text)
        listed = self.server.request('GET', '/v1/contexts', key='sk-a')[2]['data']
        self.assertEqual([c['id'] for c in listed], [context['id']])
        self.assertEqual(self.forget(context['id']), 200)
        self.ask(user('x'), 404, context=context['id'])
        self.assertEqual(self.forget(context['id']), 404)

    def check_of_others(self, context, text):
        """Another tenant neither sees the context nor saves time by it."""
        self.ask(user('x'), 404, key='sk-b', context=context)
        for method in ('GET', 'DELETE'):
            self.assertEqual(self.server.request(method, f'/v1/contexts/{context}', key='sk-b')[0],
                             404)
        self.assertEqual(self.server.request('GET', '/v1/contexts', key='sk-b')[2]['data'], [])
        other = self.ask(user(f'{text}\n\n{QUESTIONS[0]}'), key='sk-b', max_tokens=1)
        self.assertEqual(self.cached(other), 0)

    def test_a_text_for_completions(self):
        text = document()[2000:5000]
        context = self.register(text=text, template=False)
        more = {'prompt': ' The next line is', 'max_tokens': 12, 'temperature': 0}
        _, _, answer = self.server.request('POST', '/v1/completions',
                                           {**more, 'context': context['id']}, 'sk-a')
        _, _, inline = self.server.request(
            'POST', '/v1/completions', {**more, 'prompt': text + more['prompt'],
                                        'cache_prompt': False}, 'sk-a')
        self.assertEqual(answer['choices'][0]['text'], inline['choices'][0]['text'])
        self.assertGreater(self.cached(answer), context['tokens'] - BLOCK)
        self.ask(user('x'), 400, context=context['id'])
        self.assertEqual(self.forget(context['id']), 200)

    def test_limit_and_bad_registrations(self):
        for body in ({}, {'text': 'a', 'messages': user('b')}, {'text': ''},
                     {'messages': user('x'), 'template': False}, {'text': 7}):
            self.register(400, **body)
        made = [self.register(text=f'Text number {i}.')['id'] for i in range(2)]
        error = self.register(409, text='One more.')
        self.assertIn('contexts_max', str(error))
        self.register(text='Of another tenant.', key='sk-b')
        self.assertEqual(self.forget(made[0]), 200)
        made[0] = self.register(text='Again.')['id']
        self.assertEqual([self.forget(c) for c in made], [200, 200])

    def test_progress_of_a_registration(self):
        body = {'text': document()[:6000], 'stream': True}
        events = list(self.server.events('/v1/contexts', body, 'sk-a'))
        self.assertEqual(events[-1], '[DONE]')
        *progress, context = [json.loads(e) for e in events[:-1]]
        self.assertTrue(progress)
        done = [p['prompt_progress']['processed'] for p in progress]
        self.assertEqual(done, sorted(done))
        self.assertEqual(progress[-1]['prompt_progress']['total'], context['tokens'])
        self.assertEqual(self.forget(context['id']), 200)

    def test_a_second_turn_reads_only_what_is_new(self):
        messages = [{'role': 'system', 'content': 'You keep lists. ' * 20}, *user('Name a colour.')]
        first = self.ask(messages, max_tokens=24)
        messages += [{'role': 'assistant', 'content': self.said(first)}, *user('Another one.')]
        second = self.ask(messages)
        self.assertGreater(self.cached(second), first['usage']['prompt_tokens'] - BLOCK)
        alone = self.ask(messages, cache_prompt=False)
        self.assertEqual(self.said(second), self.said(alone))
        self.assertEqual(self.cached(self.ask(messages, key='sk-b')), 0)

    def test_timings_and_progress(self):
        timings = self.ask(user('Count to three.'), return_timings=True)['timings']
        self.assertEqual(timings['output_tokens'], 16)
        self.assertLessEqual(0, timings['queue_ms'])
        self.assertLessEqual(timings['ttft_ms'], timings['total_ms'])
        self.assertNotIn('timings', self.ask(user('Count to three.')))
        body = {'messages': user(document()[:6000]), 'max_tokens': 2, 'stream': True,
                'return_progress': True, 'return_timings': True}
        chunks = [json.loads(e) for e in self.server.events(CHAT, body, 'sk-b')
                  if e != '[DONE]']
        progress = [c['prompt_progress'] for c in chunks if 'prompt_progress' in c]
        self.assertTrue(progress)
        self.assertTrue(all(p['processed'] <= p['total'] for p in progress))
        self.assertEqual(progress[-1]['processed'], progress[-1]['total'])
        self.assertIn('timings', chunks[-1])

    def test_json_schema_answers_parse(self):
        schema = {'type': 'object', 'required': ['city', 'people', 'is_capital'],
                  'properties': {'city': {'type': 'string', 'maxLength': 20},
                                 'people': {'type': 'integer'},
                                 'is_capital': {'type': 'boolean'}}}
        for format in ({'response_format': {'type': 'json_schema',
                                            'json_schema': {'name': 'c', 'schema': schema}}},
                       {'json_schema': schema}, {'guided_json': json.dumps(schema)}):
            answer = self.ask(user('Tell me about Paris.'), max_tokens=200, **format)
            self.assertEqual(answer['choices'][0]['finish_reason'], 'stop', answer)
            value = json.loads(self.said(answer))
            self.assertEqual({k: type(v) for k, v in value.items()},
                             {'city': str, 'people': int, 'is_capital': bool})
        word = self.said(self.ask(user('Yes or no?'), grammar='root ::= "yes" | "no"'))
        self.assertIn(word, ('yes', 'no'))

    def test_tiers_and_headers_for_admins(self):
        answer, headers = self.ask(user('x'), key='sk-admin', headers={})
        self.assertEqual((headers['X-Varve-Class'], headers['X-Varve-Stack']), ('vip', 'main'))
        self.assertEqual(headers['X-Varve-Arm'] or '', '')
        answer, headers = self.ask(user('x'), headers={}, service_tier='priority')
        self.assertEqual(answer['service_tier'], 'priority')
        self.assertFalse([h for h in headers if h.lower().startswith('x-varve')])
        self.ask(user('x'), 403, key='sk-b', service_tier='priority')
        self.ask(user('x'), 403, service_tier='gold')
        requests = self.server.metrics('sk-admin')
        self.assertTrue([k for k in requests if k.startswith('varve_requests_total') and
                         'class="vip"' in k])


if __name__ == '__main__':
    DOCUMENT = sys.argv.pop(3)
    MODEL = sys.argv.pop(2)
    PROGRAM = sys.argv.pop(1)
    unittest.main()
