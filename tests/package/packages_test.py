#!/usr/bin/env python3
"""The .deb packages that cpack makes, and the whole installed tree: complete, and nothing missing.

Usage: packages_test.py BUILD_FOLDER
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import unittest

from installed import Installed, run

BUILD = sys.argv[1]


def elf_files(folder):
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            if os.path.islink(path):
                continue
            with open(path, 'rb') as file:
                if file.read(4) == b'\x7fELF':
                    yield path


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.installed = Installed(BUILD)

    @classmethod
    def tearDownClass(cls):
        cls.installed.close()

    def test_every_library_is_found(self):
        found = list(elf_files(self.installed.prefix))
        self.assertTrue(any(f.endswith('bin/varve') for f in found))
        for file in found:
            self.assertNotIn('not found', self.installed.run('ldd', file).stdout, file)

    def test_no_path_of_the_build_is_searched(self):
        for file in elf_files(self.installed.prefix):
            paths = re.findall(r'R(?:UN)?PATH\).*\[(.*)\]',
                               self.installed.run('readelf', '-d', file).stdout)
            for path in ':'.join(paths).split(':'):
                self.assertRegex(path, r'^(\$ORIGIN(/|$)|$)', file)

    def manual(self, name):
        path = os.path.join(self.installed.prefix, 'share', 'man', 'man1', name + '.1')
        with open(path, encoding='utf-8') as file:
            return file.read().replace('\\-', '-')

    def check_options(self, manual, *command):
        listed = self.installed.run(*command, '--help').stdout
        for option in re.findall(r'^ +(?:-\w \[ )?(--[\w-]+)', listed, re.M):
            self.assertIn(option, manual, command)

    def test_manuals_tell_every_command_and_option(self):
        manual = self.manual('varve')
        listed = self.installed.run('varve', '--help').stdout.split('Commands:\n')[1]
        commands = re.findall(r'^  (\w+) ', listed.split('\n\n')[0], re.M)
        self.assertIn('plugin', commands)
        for command in commands:
            self.assertRegex(manual, rf'\.BI?R? "?varve {command}\b')
            self.check_options(manual, 'varve', command)
        self.check_options(self.manual('mri-conform'), 'mri-conform')

    @unittest.skipUnless(shutil.which('man'), 'needs man')
    def test_manuals_are_well_formed(self):
        for page in glob.glob(os.path.join(self.installed.prefix, 'share', 'man', 'man1', '*')):
            result = run('man', '--warnings', '-l', '-E', 'UTF-8', page,
                         env={**os.environ, 'MANWIDTH': '100', 'MANPAGER': 'cat'})
            self.assertEqual(result.stderr, '', page)
            self.assertIn('NAME', result.stdout)

    @unittest.skipUnless(shutil.which('dpkg-deb'), 'needs dpkg')
    def test_debian_packages(self):
        folder = self.installed.new_folder()
        run('cpack', '-G', 'DEB', '-B', folder, '--config', f'{BUILD}/CPackConfig.cmake')
        packages = {os.path.basename(p).split('_')[0]: p for p in glob.glob(f'{folder}/*.deb')}
        self.assertEqual(sorted(packages), ['libmri-dev', 'varve'])
        root = os.path.join(folder, 'root')
        for package in packages.values():
            run('dpkg-deb', '-x', package, root)
        files = {os.path.relpath(os.path.join(r, n), os.path.join(root, 'usr'))
                 for r, _, names in os.walk(root) for n in names}
        self.assertEqual(files, set(self.installed.files()))
        program = os.path.join(root, 'usr', 'bin', 'varve')
        self.assertRegex(run(program, '--version').stdout, r'^varve \d')
        listed = run(program, 'plugin', 'list', env={'PATH': os.environ['PATH']}).stdout
        self.assertIn('quantizer', listed)
        self.assertNotIn('refused', listed)
        for name, package in packages.items():
            fields = subprocess.check_output(['dpkg-deb', '-f', package], text=True)
            self.assertIn(f'Package: {name}', fields)
            self.assertIn('Description: ', fields)
        depends = subprocess.check_output(['dpkg-deb', '-f', packages['varve'], 'Depends'],
                                          text=True)
        self.assertIn('libc6', depends)


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
