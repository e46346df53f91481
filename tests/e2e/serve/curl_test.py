#!/usr/bin/env python3
"""A first tour of the server with curl: the commands of README.md, some more, and what comes back.

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
README = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', '..', 'README.md')
ADDRESS = 'localhost:8080'  # of the commands; the server under test has another port


def json_objects(text):
    """Those in a text of other things, which may follow each other without a line's end."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while (at := text.find('{', at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, at)
            found.append(value)
        except json.JSONDecodeError:
            at += 1
    return found


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

    def test_readme(self):
        """The block of shell commands under "Serve it", as a reader would paste it."""
        with open(README, encoding='utf-8') as readme:
            section = readme.read().split('\n## Serve it\n')[1].split('\n## ')[0]
        blocks = [b for b in re.findall('^```\n(.*?)^```', section, re.MULTILINE | re.DOTALL)
                  if b.startswith('curl ')]
        self.assertEqual(len(blocks), 1, section)
        document = self.server.write('document.txt', 'A text about nothing. ' * 40)
        out = self.curl(f'VARVE_DOCUMENT={document}\nset -euo pipefail\n{blocks[0]}')
        answers = json_objects(out)
        self.assertEqual([a for a in answers if 'error' in a], [])
        chats = [a for a in answers if a.get('object') == 'chat.completion']
        self.assertEqual([chat['choices'][0]['message']['content'] for chat in chats],
                         ['What is a varve?', 'What is Debian?', 'What is this text about?'])
        [context] = [a for a in answers if a.get('object') == 'context']
        self.assertEqual(context['name'], 'faq')
        for chat in chats[1:]:
            self.assertGreater(chat['usage']['prompt_tokens_details']['cached_tokens'],
                               context['tokens'] - 32)
        pieces = [a['choices'][0]['delta'].get('content', '') for a in answers
                  if a.get('object') == 'chat.completion.chunk']
        self.assertEqual(''.join(pieces), 'What is a varve?')
        self.assertIn('[DONE]', out)
        self.assertEqual([a['deleted'] for a in answers if 'deleted' in a], [True])
        self.assertRegex(out, 'varve_cached\\w+.* [1-9]')

    def test_health_and_description(self):
        for path in ('livez', 'readyz', 'health'):
            self.curl(f'curl -sf localhost:8080/{path}')
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
