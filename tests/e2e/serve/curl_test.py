#!/usr/bin/env python3
"""A first tour of the server with curl, as the README has it: each command and what comes back.

Usage: curl_test.py PROGRAM
"""

import json
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_process import FAKE, Server

PROGRAM = ''
ADDRESS = 'localhost:8080'  # of the commands; the server under test has another port


class CurlTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(PROGRAM, FAKE)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, code

    def curl(self, command):
        self.assertIn(ADDRESS, command)
        command = command.replace(ADDRESS, f'localhost:{self.server.port}')
        run = subprocess.run(['bash', '-c', command], capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def json(self, command):
        return json.loads(self.curl(command))

    def test_chat(self):
        answer = self.json("""curl -s localhost:8080/v1/chat/completions \\
          -H 'Content-Type: application/json' \\
          -d '{"messages": [{"role": "user", "content": "Who may sign?"}], "max_tokens": 32}'""")
        self.assertEqual(answer['choices'][0]['message']['content'], 'Who may sign?')

    def test_stream(self):
        answer = self.curl("""curl -sN localhost:8080/v1/chat/completions --json '{
          "messages": [{"role": "user", "content": "Who may sign?"}], "stream": true}'""")
        events = re.findall('^data: (.*)$', answer, re.MULTILINE)
        self.assertEqual(events[-1], '[DONE]')
        pieces = [json.loads(e)['choices'][0]['delta'].get('content', '') for e in events[:-1]]
        self.assertEqual(''.join(pieces), 'Who may sign?')

    def test_completions(self):
        answer = self.json("""curl -s localhost:8080/v1/completions \\
          --json '{"prompt": "one two ", "max_tokens": 8, "temperature": 0}'""")
        self.assertEqual(answer['choices'][0]['text'], 'one two ')

    def test_document(self):
        text = 'A contract. ' * 40
        path = self.server.write('contract.txt', text)
        context = self.json(f"""python3 -c '
import json, sys
print(json.dumps({{"name": "contract", "text": open(sys.argv[1]).read()}}))' {path} |
          curl -s localhost:8080/v1/contexts --json @-""")
        self.assertEqual(context['name'], 'contract')
        question = """curl -s localhost:8080/v1/chat/completions --json '{"context": "%s",
          "messages": [{"role": "user", "content": "Who may sign?"}]}'""" % context['id']
        answer = self.json(question)
        self.assertEqual(answer['choices'][0]['message']['content'], 'Who may sign?')
        self.assertGreater(answer['usage']['prompt_tokens_details']['cached_tokens'],
                           context['tokens'] - 32)
        self.assertEqual(len(self.json('curl -s localhost:8080/v1/contexts')['data']), 1)
        self.assertTrue(self.json(
            f'curl -s -X DELETE localhost:8080/v1/contexts/{context["id"]}')['deleted'])
        self.assertEqual(self.json(question)['error']['type'], 'not_found_error')

    def test_health_metrics_and_description(self):
        for path in ('livez', 'readyz', 'health'):
            self.curl(f'curl -sf localhost:8080/{path}')
        self.assertIn('varve_build_info', self.curl('curl -sf localhost:8080/metrics'))
        self.assertIn('version', self.json('curl -sf localhost:8080/version'))
        self.assertEqual(len(self.json('curl -sf localhost:8080/v1/models')['data']), 1)
        self.assertEqual(self.json('curl -sf localhost:8080/openapi.json')['openapi'][:3], '3.1')

    def test_tokens(self):
        answer = self.json("""curl -s localhost:8080/tokenize --json '{"content": "abc"}'""")
        self.assertEqual(answer['tokens'], [97, 98, 99])
        answer = self.json("""curl -s localhost:8080/detokenize --json '{"tokens": [97, 98]}'""")
        self.assertEqual(answer['content'], 'ab')

    def test_error(self):
        answer = self.json("""curl -s localhost:8080/v1/chat/completions --json '{
          "messages": [{"role": "user", "content": "x"}], "temperature": 9}'""")
        self.assertEqual(answer['error']['param'], 'temperature')


if __name__ == '__main__':
    PROGRAM = sys.argv.pop(1)
    unittest.main()
