#!/usr/bin/env python3
"""A plugin's folder builds outside the tree against the installed package.

Usage: copied_plugin_test.py BUILD_FOLDER LOADER
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
BUILD, LOADER = sys.argv[1:3]
COMPILERS = [c for c in ['g++', 'clang++'] if shutil.which(c)]


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f'{command}\n{result.stdout}{result.stderr}'
    return result.stdout


class CopiedPlugin(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.prefix = os.path.join(cls.folder, 'prefix')
        run('cmake', '--install', BUILD, '--component', 'mri', '--prefix', cls.prefix)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def build(self, compiler, *options):
        source = os.path.join(self.folder, 'copied')
        if not os.path.exists(source):
            shutil.copytree(os.path.join(ROOT, 'plugins', 'quantizer', 'bf16'), source)
        target = tempfile.mkdtemp(dir=self.folder)
        run('cmake', '-S', source, '-B', target, f'-DCMAKE_PREFIX_PATH={self.prefix}',
            f'-DCMAKE_CXX_COMPILER={compiler}', '-DCMAKE_BUILD_TYPE=Release', *options)
        run('cmake', '--build', target)
        return target

    def test_only_the_interface_is_installed(self):
        found = []
        for folder, _, names in os.walk(self.prefix):
            found += [os.path.relpath(os.path.join(folder, n), self.prefix) for n in names]
        self.assertTrue(any(f.endswith('mri/sdk/quantizer.hpp') for f in found))
        for file in found:
            self.assertRegex(file, r'^(include/mri|lib(/[\w-]+)?/cmake/mri)/')

    def test_builds_and_loads_with_each_compiler(self):
        self.assertTrue(COMPILERS)
        for compiler in COMPILERS:
            with self.subTest(compiler=compiler):
                target = self.build(compiler)
                self.assertRegex(run(LOADER, target, 'quantizer', 'bf16'),
                                 r'quantizer\.bf16 1\.1\n$')

    def test_builds_for_the_older_version(self):
        target = self.build(COMPILERS[0], '-DCMAKE_CXX_FLAGS=-DMRI_TARGET_VERSION=MRI_1_0')
        self.assertRegex(run(LOADER, target, 'quantizer', 'bf16'), r'quantizer\.bf16 1\.0\n$')

    def test_plugin_of_the_readme_builds_and_loads(self):
        with open(os.path.join(ROOT, 'mri', 'README.md'), encoding='utf-8') as file:
            blocks = dict(re.findall(r'```(cmake|cpp)\n(.*?)```', file.read(), re.S))
        source, target = tempfile.mkdtemp(dir=self.folder), tempfile.mkdtemp(dir=self.folder)
        for name, block in [('CMakeLists.txt', 'cmake'), ('mine.cpp', 'cpp')]:
            with open(os.path.join(source, name), 'w', encoding='utf-8') as file:
                file.write(blocks[block])
        run('cmake', '-S', source, '-B', target, f'-DCMAKE_PREFIX_PATH={self.prefix}',
            '-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror')
        run('cmake', '--build', target)
        self.assertEqual(run(LOADER, target, 'kv_tier', 'mine'), 'org.example.kv_tier.mine 1.1\n')

    def test_exports_the_entry_alone(self):
        library = os.path.join(self.build(COMPILERS[0]), 'quantizer-bf16.so')
        symbols = run('nm', '-D', '--defined-only', '--format=just-symbols', library).split()
        self.assertEqual(symbols, ['mri_plugin_entry_v1'])


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
