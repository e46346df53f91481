#!/usr/bin/env python3
"""The worked third-party plugins, from installed packages alone: built against the SDK, tested, put
beside the program's own plugins, and a request is answered with each.

Usage: outside_test.py BUILD_FOLDER TINY_MODEL
"""

import json
import os
import shutil
import sys
import unittest

from installed import COMPILERS, Installed, two_at_a_time

BUILD, TINY_MODEL = sys.argv[1:3]
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
PAGES = os.path.join(ROOT, 'mri', 'conformance', 'pages.py')
PLUGINS = {'h2o': 'kv_tier', 'fp8_tensor': 'quantizer', 'streaming': 'attention'}
STRICT = '-Wall -Wextra -Wshadow -Wpedantic -Werror'


class Outside(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.sdk = Installed(BUILD, 'sdk')
        cls.program = Installed(BUILD, 'varve', 'plugins')
        cls.model = os.path.join(cls.program.folder, 'tiny.gguf')
        cls.program.run(TINY_MODEL, cls.model)
        cls.profiles = os.path.join(cls.sdk.prefix, 'share', 'mri', 'examples')

    @classmethod
    def tearDownClass(cls):
        cls.sdk.close()
        cls.program.close()

    def build(self, name, compiler):
        """Copies one out of the SDK, builds it, runs its tests, mri-conform among them."""
        folder = os.path.join(self.sdk.new_folder(), name)
        shutil.copytree(os.path.join(self.profiles, name), folder)
        made = os.path.join(folder, 'build')
        self.sdk.run('cmake', '-S', folder, '-B', made, '-DCMAKE_BUILD_TYPE=Release',
                     f'-DCMAKE_CXX_COMPILER={compiler}', f'-DCMAKE_CXX_FLAGS={STRICT}')
        self.sdk.run('cmake', '--build', made)
        tests = self.sdk.run('ctest', '--test-dir', made, '--output-on-failure').stdout
        self.assertRegex(tests, r'100% tests passed, 0 tests failed out of 2')
        self.assertRegex(tests, r'conform \.+ +Passed')
        library = os.path.join(made, f'{PLUGINS[name]}-{name}.so')
        check, = json.loads(self.program.run('varve', 'plugin', 'check', library, '--strict',
                                             '--json').stdout)
        self.assertEqual(check['findings'], [])
        self.assertEqual(check['id'], f'org.example.{PLUGINS[name]}.{name}')
        return made

    def ask(self, profile, *settings):
        words = [w for s in settings for w in ('--set', s)]
        environment = {**self.program.environment, 'VARVE_MODEL': self.model}
        return json.loads(self.program.run(
            'varve', 'ask', '--profile', os.path.join(self.profiles, profile), '--json',
            '--set', 'runtime.warm_up=false', '--set', 'generate.max_tokens=4', *words,
            'Which words?', input='some words ' * 100, env=environment).stdout)

    def test_each_builds_conforms_and_answers(self):
        self.assertTrue(COMPILERS)
        jobs = [(name, compiler) for compiler in COMPILERS for name in PLUGINS]
        folders = dict(zip(jobs, two_at_a_time(self.build, jobs)))
        for compiler in COMPILERS:
            for name in PLUGINS:
                self.program.run('cmake', '--install', folders[name, compiler], '--prefix',
                                 self.program.prefix)
            with self.subTest(compiler=compiler):
                self.check_answers()
        first = next(iter(COMPILERS))
        two_at_a_time(self.check_results, [(name, folders[name, first]) for name in PLUGINS])

    def check_results(self, name, folder):
        """An official package, whose row is in the page of results."""
        library = os.path.join(folder, f'{PLUGINS[name]}-{name}.so')
        package = os.path.join(folder, 'package')
        self.sdk.run('mri-conform', '--official', package, library)
        self.sdk.run('mri-conform', 'verify', package, library)
        self.sdk.run(sys.executable, PAGES, '--results', '--check', package)

    def check_answers(self):
        """Some blocks are heavy or recent, the others FP8, or forgotten."""
        for profile in ('outside.toml', 'outside-streaming.toml'):
            self.program.run('varve', 'profile', 'check', os.path.join(self.profiles, profile))
        answer = self.ask('outside.toml', 'kv_tier.heavy_tokens=64', 'kv_tier.recent_tokens=64')
        tokens, sizes = answer['kv_tokens'], answer['kv_bytes']
        self.assertEqual(answer['answer_tokens'], 4)
        self.assertEqual(tokens['hot'] + tokens['warm'], answer['prompt_tokens'] + 3)
        # A sink, two heavy blocks, the recent ones, and one that is being filled.
        self.assertTrue(160 <= tokens['hot'] < 224, tokens)
        self.assertLess(sizes['warm'] / tokens['warm'], sizes['hot'] / tokens['hot'])

        answer = self.ask('outside-streaming.toml', 'kv_tier.recent_tokens=64',
                          'attention.window_tokens=32')
        tokens = answer['kv_tokens']
        self.assertEqual(answer['answer_tokens'], 4)
        self.assertTrue(96 <= tokens['hot'] < 160, tokens)
        self.assertEqual(tokens['warm'] + tokens['cold'], 0)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
