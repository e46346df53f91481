#!/usr/bin/env python3
"""The installed plugin SDK alone: plugins in C and C++ build against it, and load.

Usage: sdk_test.py BUILD_FOLDER LOADER PLAIN_C_FOLDER
"""

import os
import re
import shutil
import sys
import unittest

from installed import COMPILERS, Installed

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
BUILD, LOADER, PLAIN_C = sys.argv[1:4]


class Sdk(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.installed = Installed(BUILD, 'sdk')
        # An empty folder to run in: nothing of the source tree can be found from there.
        cls.installed.environment['PWD'] = cls.installed.folder

    @classmethod
    def tearDownClass(cls):
        cls.installed.close()

    def run_there(self, *command):
        return self.installed.run(*command, cwd=self.installed.folder).stdout

    def build(self, source, compiler, *options):
        copy = os.path.join(self.installed.new_folder(), 'source')
        shutil.copytree(source, copy)
        target = self.installed.new_folder()
        self.run_there('cmake', '-S', copy, '-B', target, '-DCMAKE_BUILD_TYPE=Release',
                       f'-DCMAKE_CXX_COMPILER={compiler}',
                       f'-DCMAKE_C_COMPILER={COMPILERS[compiler]}', *options)
        self.run_there('cmake', '--build', target)
        return target

    def load(self, folder, kind, name):
        return self.run_there(LOADER, folder, kind, name)

    def test_only_the_interface_is_installed(self):
        places = (r'^(include/mri|share/cmake/mri|share/mri/template|share/mri/examples|'
                  r'share/pkgconfig/mri\.pc$|share/man/man1/mri-conform\.1|bin/mri-conform$|'
                  r'share/mri/conformance)')
        found = self.installed.files()
        for file in found:
            self.assertRegex(file, places)
        for wanted in ('include/mri/mri.h', 'include/mri/sdk/testing.hpp',
                       'share/cmake/mri/mri-config.cmake', 'share/pkgconfig/mri.pc',
                       'share/mri/template/common/ci.yml.in', 'share/mri/examples/outside.toml'):
            self.assertIn(wanted, found)

    def test_names_no_place_of_this_machine(self):
        places = [os.path.realpath(place).encode() for place in (BUILD, ROOT)]
        for file in self.installed.files():
            if file.startswith('bin/'):
                continue
            with open(os.path.join(self.installed.prefix, file), 'rb') as opened:
                text = opened.read()
            for place in places:
                self.assertNotIn(place, text, file)

    def test_cpp_plugin_with_each_compiler(self):
        source = os.path.join(ROOT, 'plugins', 'quantizer', 'bf16')
        for compiler in COMPILERS:
            with self.subTest(compiler=compiler):
                target = self.build(source, compiler)
                self.assertRegex(self.load(target, 'quantizer', 'bf16'),
                                 r'quantizer\.bf16 1\.1\n$')

    def test_c_plugin_with_each_compiler(self):
        for compiler in COMPILERS:
            with self.subTest(compiler=compiler):
                target = self.build(PLAIN_C, compiler, '-DCMAKE_MODULE_LINKER_FLAGS=-Wl,-z,defs')
                self.assertEqual(self.load(target, 'quantizer', 'plain'),
                                 'org.example.quantizer.plain 1.1\n')
                needed = self.run_there('readelf', '-d', f'{target}/quantizer-plain.so')
                self.assertNotIn('libstdc++', needed)

    @unittest.skipUnless(shutil.which('pkg-config'), 'needs pkg-config')
    def test_c_plugin_by_pkg_config(self):
        flags = self.run_there('pkg-config', '--cflags', 'mri').split()
        self.assertRegex(self.run_there('pkg-config', '--modversion', 'mri'), r'^1\.\d+\n$')
        target = self.installed.new_folder()
        self.run_there(next(iter(COMPILERS.values())), '-std=c11', '-O2', '-fPIC', '-shared',
                       '-fvisibility=hidden', '-Wl,-z,defs', *flags,
                       os.path.join(PLAIN_C, 'plain.c'),
                       '-o', f'{target}/quantizer-plain.so')
        self.assertEqual(self.load(target, 'quantizer', 'plain'),
                         'org.example.quantizer.plain 1.1\n')

    def test_own_cpp_library_inside(self):
        source = os.path.join(self.installed.new_folder(), 'source')
        shutil.copytree(os.path.join(ROOT, 'plugins', 'quantizer', 'bf16'), source)
        path = os.path.join(source, 'CMakeLists.txt')
        with open(path, encoding='utf-8') as file:
            text = file.read().replace('SOURCES bf16.cpp', 'SOURCES bf16.cpp STATIC_LIBSTDCXX')
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)
        target = self.build(source, next(iter(COMPILERS)))
        library = f'{target}/quantizer-bf16.so'
        self.assertNotIn('libstdc++', self.run_there('readelf', '-d', library))
        self.assertRegex(self.load(target, 'quantizer', 'bf16'), r'quantizer\.bf16 1\.1\n$')

    def test_builds_for_the_older_version(self):
        target = self.build(os.path.join(ROOT, 'plugins', 'quantizer', 'bf16'),
                            next(iter(COMPILERS)),
                            '-DCMAKE_CXX_FLAGS=-DMRI_TARGET_VERSION=MRI_1_0')
        self.assertRegex(self.load(target, 'quantizer', 'bf16'), r'quantizer\.bf16 1\.0\n$')

    def test_plugin_of_the_readme_builds_and_loads(self):
        with open(os.path.join(ROOT, 'mri', 'README.md'), encoding='utf-8') as file:
            blocks = dict(re.findall(r'```(cmake|cpp)\n(.*?)```', file.read(), re.S))
        source = self.installed.new_folder()
        for name, block in [('CMakeLists.txt', 'cmake'), ('mine.cpp', 'cpp')]:
            with open(os.path.join(source, name), 'w', encoding='utf-8') as file:
                file.write(blocks[block])
        target = self.build(source, next(iter(COMPILERS)),
                            '-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror')
        self.assertEqual(self.load(target, 'kv_tier', 'mine'), 'org.example.kv_tier.mine 1.1\n')

    def test_library_shows_the_entry_alone_and_has_a_build_id(self):
        target = self.build(os.path.join(ROOT, 'plugins', 'quantizer', 'bf16'),
                            next(iter(COMPILERS)))
        library = os.path.join(target, 'quantizer-bf16.so')
        stripped = library + '.stripped'
        self.run_there('strip', '-o', stripped, library)
        for file in (library, stripped):
            symbols = self.run_there('nm', '-D', '--defined-only', '--format=just-symbols', file)
            self.assertEqual(symbols.split(), ['mri_plugin_entry_v1'])
            self.assertIn('Build ID', self.run_there('readelf', '-n', file))
            self.assertNotRegex(self.run_there('readelf', '-d', file), r'RPATH|RUNPATH')


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
