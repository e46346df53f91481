#!/usr/bin/env python3
"""From an installed tree alone: a new plugin of each kind is made, built, tested, checked, loaded,
and a request is answered with it.

Usage: new_plugin_test.py BUILD_FOLDER TINY_MODEL
"""

import json
import os
import re
import sys
import unittest

from installed import COMPILERS, Installed, two_at_a_time

BUILD, TINY_MODEL = sys.argv[1:3]
KINDS = ['runtime', 'kv_tier', 'quantizer', 'attention', 'summary', 'batching']
# A stack that runs on the smallest model, quickly.
STACK = {
    'runtime.plugin': 'light',
    'runtime.warm_up': 'false',
    'kv_tier.plugin': 'age',
    'kv_tier.hot_tokens': '64',
    'kv_tier.warm_tokens': '64',
    'generate.max_tokens': '4',
}


class NewPlugin(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.installed = Installed(BUILD)
        cls.model = os.path.join(cls.installed.folder, 'tiny.gguf')
        cls.installed.run(TINY_MODEL, cls.model)

    @classmethod
    def tearDownClass(cls):
        cls.installed.close()

    def varve(self, *words, **options):
        return self.installed.run('varve', *words, **options)

    def build(self, kind, compiler):
        """Makes and builds one; its tests pass, `varve plugin check` among them."""
        name = compiler.replace('+', 'x')
        folder = os.path.join(self.installed.folder, f'{kind}-{name}')
        self.varve('plugin', 'new', kind, name, '--directory', folder)
        for command in (('cmake', '--preset', 'release', f'-DCMAKE_CXX_COMPILER={compiler}'),
                        ('cmake', '--build', '--preset', 'release')):
            run = self.installed.run(*command, cwd=folder)
            self.assertNotIn('warning', run.stderr + run.stdout)
        tests = self.installed.run('ctest', '--preset', 'release', cwd=folder).stdout
        self.assertRegex(tests, r'100% tests passed, 0 tests failed out of \d')
        self.assertRegex(tests, r'check \.+ +Passed')
        self.assertRegex(tests, r'conform \.+ +Passed')
        return name, os.path.join(folder, 'build', 'release')

    def answer(self, kind, name, folder):
        directories = f'{folder}:{self.installed.prefix}/lib/varve'
        stack = {**STACK, f'{kind}.plugin': name, 'plugins.directories': directories}
        if kind == 'runtime':
            stack = {k: v for k, v in stack.items() if k.split('.')[0] in ('runtime', 'plugins')}
            del stack['runtime.warm_up']
            stack.update({f'{k}.plugin': 'none' for k in KINDS if k != 'runtime'})
        elif kind == 'kv_tier':
            stack.update({'kv_tier.hot_tokens': '32', 'kv_tier.warm_tokens': '64'})
        words = [w for k, v in stack.items() for w in ('--set', f'{k}={v}')]
        environment = {**self.installed.environment, 'VARVE_MODEL': self.model}
        text = 'words' if kind == 'runtime' else 'some words ' * 30
        return self.varve('ask', *words, '--json', 'Which words?', input=text,
                          env=environment).stdout

    def test_each_kind_with_each_compiler(self):
        self.assertTrue(COMPILERS)
        jobs = [(kind, compiler) for kind in KINDS for compiler in COMPILERS]
        for (kind, compiler), (name, folder) in zip(jobs, two_at_a_time(self.build, jobs)):
            with self.subTest(kind=kind, compiler=compiler):
                library = os.path.join(folder, f'{kind}-{name}.so')
                check, = json.loads(self.varve('plugin', 'check', library, '--strict',
                                               '--json').stdout)
                self.assertEqual(check['findings'], [])
                self.assertEqual(check['id'], f'org.example.{kind}.{name}')
                info = self.varve('plugin', 'info', f'{kind}/{name}', '--set',
                                  f'plugins.directories={folder}').stdout
                self.assertIn('used here: 1.1', info)
                answer = json.loads(self.answer(kind, name, folder))
                if kind == 'runtime':
                    self.assertIn('Which words?', answer['answer'])

    def test_the_profile_that_its_readme_shows(self):
        folder = os.path.join(self.installed.new_folder(), 'own')
        self.varve('plugin', 'new', 'kv_tier', 'own', '--directory', folder)
        self.installed.run('cmake', '--preset', 'release', '-DBUILD_TESTING=OFF',
                           '-DCMAKE_CXX_FLAGS=-O0', cwd=folder)
        self.installed.run('cmake', '--build', '--preset', 'release', cwd=folder)
        with open(os.path.join(folder, 'README.md'), encoding='utf-8') as readme:
            shown = re.search(r'```toml\n(.*?)```', readme.read(), re.S)[1]
        profile = os.path.join(folder, 'profile.toml')
        with open(profile, 'w', encoding='utf-8') as file:
            file.write(shown.replace('<this folder>', folder)
                       .replace('<where varve is installed>', self.installed.prefix))
        self.assertEqual(self.varve('profile', 'check', profile).stdout, 'ok\n')

    def build_for_the_older_version(self, kind):
        folder = os.path.join(self.installed.new_folder(), 'old')
        self.varve('plugin', 'new', kind, 'old', '--directory', folder)
        self.installed.run('cmake', '--preset', 'release', '-DBUILD_TESTING=OFF',
                           '-DCMAKE_CXX_FLAGS=-O0 -DMRI_TARGET_VERSION=MRI_1_0', cwd=folder)
        self.installed.run('cmake', '--build', '--preset', 'release', cwd=folder)
        return self.varve('plugin', 'info', f'{kind}/old', '--set',
                          f'plugins.directories={folder}/build/release').stdout

    def test_templates_build_for_the_older_version(self):
        infos = two_at_a_time(self.build_for_the_older_version, [(kind,) for kind in KINDS])
        for info in infos:
            self.assertIn('MRI      1.0 to 1.0', info)

    def test_check_tells_by_exit_code(self):
        folder = self.installed.new_folder()
        text = os.path.join(folder, 'text.so')
        with open(text, 'w', encoding='utf-8') as file:
            file.write('no library')
        run = self.varve('plugin', 'check', text, returncode=1)
        self.assertIn('MRI-L001 error: not a sound ELF shared library', run.stdout)
        run = self.varve('plugin', 'check', os.path.join(folder, 'none.so'), returncode=2)
        self.assertIn('none.so: found no such file', run.stderr)
        self.varve('plugin', 'check', returncode=2)

    def test_own_plugins_have_no_errors(self):
        folder = os.path.join(self.installed.prefix, 'lib', 'varve')
        libraries = [os.path.join(folder, n) for n in os.listdir(folder) if n.endswith('.so')]
        self.assertTrue(libraries)
        reports = json.loads(self.varve('plugin', 'check', '--json', *libraries).stdout)
        for report in reports:
            bad = [f for f in report['findings'] if f['severity'] != 'info']
            if report['kind'] != 'runtime':  # those need the libraries of their engines
                self.assertEqual(bad, [], report['file'])

    def test_bad_names_and_folders(self):
        folder = self.installed.new_folder()
        there = os.path.join(folder, 'there')
        os.mkdir(there)
        cases = [
            (('kv_teir', 'mine'), 'did you mean "kv_tier"?'),
            (('kv_tier', 'Mine'), 'found name "Mine"'),
            (('kv_tier', '../mine'), 'found name "../mine"'),
            (('kv_tier', 'none'), 'found name "none"'),
            (('kv_tier', 'age'), 'kv_tier-age.so'),
            (('kv_tier', 'mine', '--directory', there), 'found something there already'),
            (('kv_tier', 'mine', '--directory', '/proc/mine'), 'cannot be made'),
            (('kv_tier',), 'expected'),
        ]
        for words, part in cases:
            with self.subTest(words=words):
                run = self.varve('plugin', 'new', *words, returncode=2, cwd=folder)
                self.assertIn(part, run.stderr)
                self.assertEqual(run.stdout, '')
        self.assertEqual(os.listdir(folder), ['there'])

    def test_says_what_to_do_next(self):
        folder = self.installed.new_folder()
        out = json.loads(self.varve('plugin', 'new', 'summary', 'means', '--json',
                                    cwd=folder).stdout)
        self.assertEqual(out['directory'], 'summary-means')
        self.assertIn('.github/workflows/ci.yml', out['files'])
        self.assertIn(f'export CMAKE_PREFIX_PATH={self.installed.prefix}', out['next'])
        for root, _, names in os.walk(os.path.join(folder, 'summary-means')):
            for name in names:
                with open(os.path.join(root, name), encoding='utf-8') as file:
                    self.assertNotRegex(file.read(), r'@(kind|name|about)@')

    def test_program_without_sdk_says_what_is_missing(self):
        templates = os.path.join(self.installed.prefix, 'share', 'mri', 'template')
        os.rename(templates, templates + '-away')
        try:
            run = self.varve('plugin', 'new', 'summary', 'x', returncode=2,
                             cwd=self.installed.folder)
        finally:
            os.rename(templates + '-away', templates)
        self.assertTrue(re.search('install the package libmri-dev', run.stderr), run.stderr)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
