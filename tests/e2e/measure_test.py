#!/usr/bin/env python3
"""Runs 'varve eval' and 'varve bench' on the fake runtime: what they print, and their exit codes.

Usage: measure_test.py PROGRAM FAKE_PROFILE
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM, FAKE = '', ['--profile', '']


def varve(*words):
    kept = {k: v for k, v in os.environ.items() if not k.startswith('VARVE_')}
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=240, env=kept,
                          stdin=subprocess.DEVNULL)


class MeasureTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.text = os.path.join(self.folder.name, 'text')
        with open(self.text, 'w', encoding='utf-8') as file:
            file.write('The quick brown fox jumps over the lazy dog. ' * 100)

    def result(self, *words):
        run = varve(*words, *FAKE, '--text', self.text, '--json')
        self.assertEqual(run.returncode, 0, run.stderr)
        return json.loads(run.stdout)

    def check_refused(self, code, run, *parts):
        self.assertEqual((run.returncode, run.stdout), (code, ''), run.stderr)
        self.assertTrue(run.stderr.splitlines()[0].startswith('varve: '), run.stderr)
        for part in parts:
            self.assertIn(part, run.stderr)

    def test_kld_of_equal_stacks_is_zero(self):
        found = self.result('eval', 'kld', '--length', '3000', '--positions', '20', '--texts', '2',
                            '--bands')
        self.assertEqual((found['mean_kld'], found['p99_kld'], found['top1_agreement']), (0, 0, 1))
        self.assertEqual((found['positions'], found['length'], found['texts']), (40, 3000, 2))
        self.assertEqual([(b['from_token'], b.get('to_token'), b['positions'])
                          for b in found['bands']], [(0, 2048, 40), (2048, 32768, 40)])
        self.assertGreater(found['kv_bytes']['bf16_equivalent'], 0)

    def test_recall_counts_what_the_answers_hold(self):
        found = self.result('eval', 'recall', '--length', '2600', '--needles', '10')
        # The fake runtime repeats the question, which has no digits.
        self.assertEqual((found['accuracy'], found['accuracy_strict']), (0, 0))
        self.assertEqual((found['accuracy_exact'], found['samples']), (0, 10))
        self.assertEqual(sum(depth['samples'] for depth in found['by_depth']), 10)
        alone = self.result('eval', 'recall', '--length', '2600', '--needles', '5', '--no-exact')
        self.assertNotIn('accuracy_exact', alone)

    def test_bench_alone(self):
        found = self.result('bench', '--prompt-tokens', '500', '--decode-tokens', '3', '--rounds',
                            '2', '--against', 'none', '--threads', '1')
        self.assertEqual(found['run'], {'prompt_tokens': 500, 'decode_tokens': 3, 'rounds': 2,
                                        'threads': 1})
        self.assertNotIn('ratio', found)
        self.assertGreater(found['varve']['prefill_s'], 0)
        self.assertGreater(found['varve']['peak_rss_mb'], 1)
        self.assertEqual(set(found['varve']['kv_bytes']),
                         {'hot', 'warm', 'cold', 'backing', 'bf16_equivalent'})

    def test_bench_tells_why_an_engine_failed(self):
        run = varve('bench', *FAKE, '--text', self.text, '--prompt-tokens', '500', '--against',
                    'none', '--set', 'runtime.kv_budget_mb=1', '--set', 'runtime.max_tokens=300')
        self.check_refused(1, run, 'expected at most 300')

    def test_the_peer_needs_a_model_file(self):
        self.check_refused(1, varve('eval', 'parity', *FAKE, '--text', self.text),
                           'found no model file')
        run = varve('bench', *FAKE, '--text', self.text, '--prompt-tokens', '100')
        self.check_refused(1, run, 'found no model file')

    def test_too_little_text(self):
        run = varve('eval', 'kld', *FAKE, '--text', self.text, '--length', '4600', '--set',
                    'runtime.trained_tokens=8192')
        self.check_refused(1, run, 'found 4,500 tokens of text', 'expected 4,600')
        missing = os.path.join(self.folder.name, 'none')
        self.check_refused(1, varve('eval', 'kld', *FAKE, '--length', '100', '--positions', '9',
                                    '--text', missing), missing)

    def test_bad_command_lines(self):
        for words in (['eval'], ['eval', 'kdl'], ['eval', 'kld', '--positions', '0'],
                      ['eval', 'recall', '--needles', '0'], ['eval', 'parity', '--tokens', '1'],
                      ['bench', '--against', 'x'], ['bench', '--rounds', '0'],
                      ['bench', '--peer-kv', 'x']):
            with self.subTest(words=words):
                self.check_refused(2, varve(*words, *FAKE))

    def test_help(self):
        for words in (['eval'], ['eval', 'parity'], ['eval', 'kld'], ['eval', 'recall'], ['bench']):
            with self.subTest(words=words):
                run = varve(*words, '--help')
                self.assertEqual((run.returncode, run.stderr), (0, ''))
                self.assertIn('usage: varve ' + words[0], run.stdout)


if __name__ == '__main__':
    PROGRAM, FAKE[1] = (os.path.abspath(p) for p in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
