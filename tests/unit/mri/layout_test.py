#!/usr/bin/env python3
"""The interface's layout equals the stored tables, whoever compiles it; the gate itself is tried on
headers that break the rules. Usage: layout_test.py [C compiler of the build]"""

import os
import re
import shutil
import sys
import tempfile
import unittest
from unittest import mock

import changed_headers as changes
from changed_headers import changed_headers, fields_with, layout

COMPILERS = [c for c in ['gcc', 'clang', *sys.argv[1:]] if shutil.which(c)]


class LayoutTest(unittest.TestCase):
    def test_every_compiler_and_language_gives_the_stored_table(self):
        self.assertTrue(COMPILERS)
        for compiler in COMPILERS:
            for language in layout.LANGUAGES:
                for version in layout.VERSIONS:
                    with self.subTest(compiler=compiler, language=language, version=version):
                        self.assertEqual(layout.table(version, compiler, language),
                                         layout.stored(version))

    def test_frozen_headers_give_the_table_of_1_0(self):
        for language in layout.LANGUAGES:
            self.assertEqual(layout.table('1.0', COMPILERS[0], language,
                                          changes.FROZEN),
                             layout.stored('1.0'))

    def test_each_version_only_appends_to_the_one_before(self):
        for old, new in zip(layout.VERSIONS, layout.VERSIONS[1:]):
            findings = layout.append_findings(layout.stored(old), layout.stored(new))
            self.assertEqual(list(findings), [])
            self.assertNotEqual(layout.stored(old), layout.stored(new))

    def test_field_list_knows_every_struct(self):
        known = {name for name, _, _ in layout.read_fields()}
        for folder, _, names in os.walk(layout.HEADERS):
            for name in names:
                with open(os.path.join(folder, name), encoding='utf-8') as file:
                    self.assertEqual(set(re.findall(r'struct (mri_\w+) \{', file.read())) - known,
                                     set(), name)

    def test_header_version_is_the_newest_table(self):
        with open(os.path.join(layout.HEADERS, 'mri', 'version.h'), encoding='utf-8') as file:
            newest = 'MRI_' + layout.VERSIONS[-1].replace('.', '_')
            self.assertIn(f'#define MRI_HEADER_VERSION {newest}\n', file.read())


class GateTest(unittest.TestCase):
    """Each breach is found."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def test_unlisted_member_does_not_compile(self):
        headers = changed_headers(self.folder, 'kind/runtime.h', 'uint64_t n_evicted;',
                                  'uint64_t sneaked_in; uint64_t n_evicted;')
        with self.assertRaisesRegex(RuntimeError, 'mri_evict_rsp: hole or unlisted member'):
            layout.table('1.1', COMPILERS[0], headers=headers)

    def test_hole_does_not_compile(self):
        headers = changed_headers(self.folder, 'kind/runtime.h', 'uint32_t n_refused;', '')
        structs = [(n, k, [m for m in members if m[0] != 'n_refused'])
                   for n, k, members in layout.read_fields()]
        with self.assertRaisesRegex(RuntimeError, 'mri_evict_rsp: hole or unlisted member'):
            layout.table('1.1', COMPILERS[0], headers=headers, structs=structs)

    def test_insertion_in_the_middle_is_not_an_append(self):
        headers = changed_headers(self.folder, 'kind/runtime.h', 'uint64_t n_evicted;',
                                  'uint64_t sneaked_in; uint64_t n_evicted;')
        new = layout.table('1.1', COMPILERS[0], headers=headers,
                           structs=fields_with('mri_evict_rsp', 'sneaked_in', 'hdr'))
        self.assertEqual(list(layout.append_findings(layout.stored('1.0'), new)),
                         ['mri_evict_rsp.n_evicted: moved, retyped or removed'])

    def test_retyped_member_is_found(self):
        headers = changed_headers(self.folder, 'kind/kv_tier.h', 'uint64_t n_actions;',
                                  'double n_actions;')
        new = layout.table('1.1', COMPILERS[0], headers=headers)
        self.assertEqual(list(layout.append_findings(layout.stored('1.0'), new)),
                         ['mri_tier_rsp.n_actions: moved, retyped or removed'])

    def test_appended_member_of_a_new_version_passes(self):
        changed_headers(self.folder, 'version.h', '#define MRI_1_1',
                        '#define MRI_1_2 MRI_VERSION(1, 2)\n#define MRI_1_1')
        headers = changed_headers(self.folder, 'kind/kv_tier.h', 'uint64_t n_actions;',
                                  'uint64_t n_actions;\n#if MRI_TARGET_VERSION >= MRI_1_2\n'
                                  'uint64_t n_spared;\n#endif\n')
        structs = fields_with('mri_tier_rsp', 'n_spared', 'n_actions', since='1.2')
        with mock.patch.object(layout, 'VERSIONS', ['1.0', '1.1', '1.2']):
            for version in ('1.0', '1.1'):
                self.assertEqual(layout.table(version, COMPILERS[0], 'c11', headers, structs),
                                 layout.stored(version))
            new = layout.table('1.2', COMPILERS[0], 'c11', headers, structs)
        self.assertEqual(list(layout.append_findings(layout.stored('1.1'), new)), [])
        self.assertIn('mri_tier_rsp\tgrows\tn_spared\t40\t8\tu64\n', new)

    def test_appended_member_without_a_new_version_is_found(self):
        headers = changed_headers(self.folder, 'kind/kv_tier.h', 'uint64_t n_actions;',
                                  'uint64_t n_actions; uint64_t n_spared;')
        new = layout.table('1.1', COMPILERS[0], headers=headers,
                           structs=fields_with('mri_tier_rsp', 'n_spared', 'n_actions'))
        self.assertNotEqual(new, layout.stored('1.1'))

    def test_longer_frozen_struct_and_removed_struct_are_found(self):
        old = layout.stored('1.0')
        longer = old + 'mri_token_range\tfrozen\textra\t16\t8\tu64\n'
        self.assertEqual(list(layout.append_findings(old, longer)),
                         ['mri_token_range: frozen, but has new members'])
        without = '\n'.join(l for l in old.splitlines() if not l.startswith('mri_rope\t'))
        self.assertEqual(list(layout.append_findings(old, without)),
                         ['mri_rope: gone, or no longer frozen'])


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
