#!/usr/bin/env python3
"""schemathesis against /openapi.json on the fake runtime: no server error, nothing undocumented.

Usage: schema_test.py PROGRAM [CASES]
"""

import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server_process import CLASSES, FAKE, KEYS, Server, merged

PROGRAM, CASES = '', 2000
EXAMPLES = 30  # of each operation, beside those of the coverage phase
# 501 says what this server or its runtime does not have.
CONFIG = '''
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501"]
'''
CHECKS = ('not_a_server_error,status_code_conformance,content_type_conformance,'
          'response_schema_conformance,unsupported_method,ignored_auth')


class SchemaTest(unittest.TestCase):
    def test_no_server_error(self):
        server = Server(PROGRAM, merged(FAKE, CLASSES), KEYS)
        self.addCleanup(server.stop)
        config = server.write('schemathesis.toml', CONFIG)
        run = subprocess.run(
            [sys.executable, '-m', 'schemathesis.cli', '--config-file', config, 'run',
             server.url + '/openapi.json',
             '-H', 'Authorization: Bearer sk-admin', '--checks', CHECKS, '--seed', '1',
             '--phases', 'examples,coverage,fuzzing', '--mode', 'all', '--request-timeout', '30',
             '--max-examples', str(EXAMPLES), '--continue-on-failure',
             '--suppress-health-check', 'all', '--no-color'],
            capture_output=True, text=True, timeout=1200, cwd=server.folder)
        self.assertEqual(run.returncode, 0, run.stdout[-8000:] + run.stderr[-2000:])
        cases = re.search(r'(\d[\d,]*) generated', run.stdout)
        self.assertIsNotNone(cases, run.stdout[-2000:])
        self.assertGreaterEqual(int(cases.group(1).replace(',', '')), CASES)
        self.assertEqual(server.request('GET', '/livez')[0], 200)


if __name__ == '__main__':
    if len(sys.argv) > 2 and sys.argv[2].isdigit():
        CASES = int(sys.argv.pop(2))
    PROGRAM = sys.argv.pop(1)
    unittest.main()
