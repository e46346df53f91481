#!/usr/bin/env python3
"""The interface is what abidiff knows of each release; this gate, too, is tried on headers that
break the rules. Usage: witness_test.py [C compiler of the build]"""

import shutil
import sys
import tempfile
import unittest
from unittest import mock

from changed_headers import FROZEN, changed_headers, layout

import witness  # from mri/abi, which the import above put on the path

COMPILERS = [c for c in ['gcc', 'clang', *sys.argv[1:]] if shutil.which(c)]


class WitnessTest(unittest.TestCase):
    def test_headers_are_those_of_each_release(self):
        self.assertTrue(COMPILERS)
        for compiler in COMPILERS:
            for version in layout.VERSIONS:
                with self.subTest(compiler=compiler, version=version):
                    now = witness.describe(version, compiler)
                    self.assertEqual(witness.findings(witness.stored(version), now), '')
        frozen = witness.describe('1.0', COMPILERS[0], FROZEN)
        self.assertEqual(witness.findings(witness.stored('1.0'), frozen), '')

    def test_each_release_adds_what_was_reviewed(self):
        for old, new in zip(layout.VERSIONS, layout.VERSIONS[1:]):
            before, after = witness.stored(old), witness.stored(new)
            self.assertEqual(witness.findings(before, after, witness.reviewed(new)), '')
            self.assertNotEqual(witness.findings(before, after), '')

    def test_reviewed_additions_are_those_of_the_field_list(self):
        added = [f'{struct}.{member}' for struct, _, members in layout.read_fields()
                 for member, since in members if since == '1.1']
        report = witness.reviewed('1.1')
        self.assertEqual(report.count('data member insertion'), 1)
        self.assertEqual(report.count('at offset'), len(added))
        for name in added:
            self.assertIn(f" {name.split('.')[1]}'", report)

    def test_every_struct_and_callback_is_there(self):
        text = witness.describe('1.1', COMPILERS[0])
        for struct, _, _ in layout.read_fields():
            self.assertIn(f"'witness_{struct}'", text)
        for function in ('mri_plugin__activate', 'mri_host_threads_v1__parallel_for',
                         'mri_runtime_v1__evict_kv', 'mri_kernels_v1__matmul_nt'):
            self.assertIn(f"'{function}'", text)


class GateTest(unittest.TestCase):
    """Each breach is found."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def found(self, header, old, new, release='1.1', appended=''):
        headers = changed_headers(self.folder, header, old, new)
        return witness.findings(witness.stored(release),
                                witness.describe('1.1', COMPILERS[0], headers), appended)

    def test_insertion_in_the_middle(self):
        self.assertIn("'uint64_t sneaked_in', at offset 128",
                      self.found('kind/runtime.h', 'uint64_t n_evicted;',
                                 'uint64_t sneaked_in; uint64_t n_evicted;'))

    def test_member_of_another_type(self):
        self.assertIn('mri_tier_rsp', self.found('kind/kv_tier.h', 'uint64_t n_actions;',
                                                 'double n_actions;'))

    def test_callback_with_another_argument(self):
        self.assertIn('evict_kv', self.found('kind/runtime.h',
                                             'uint64_t ctx, const mri_evict_req*',
                                             'uint32_t ctx, const mri_evict_req*'))

    def test_member_that_the_release_does_not_have(self):
        self.assertIn('n_spared', self.found('kind/kv_tier.h', 'uint64_t n_actions;',
                                             'uint64_t n_actions; uint64_t n_spared;'))

    def test_breach_in_a_struct_that_also_grew_as_reviewed(self):
        self.assertIn('bytes_freed', self.found('kind/runtime.h', 'uint64_t bytes_freed;',
                                                'double bytes_freed;', '1.0',
                                                witness.reviewed('1.1')))

    def test_incompatible_change_is_wrong_even_if_reviewed(self):
        text = witness.stored('1.1')
        name = "name='mri_runtime_v1__evict_kv'"
        symbol = next(line for line in text.splitlines() if 'elf-symbol' in line and name in line)
        code, report = witness.difference(text, text.replace(symbol, ''))
        self.assertTrue(code & witness.INCOMPATIBLE)
        self.assertNotEqual(witness.findings(text, text.replace(symbol, ''), report), '')

    def test_failure_of_the_tool_is_no_pass(self):
        with self.assertRaisesRegex(RuntimeError, 'abidiff: exit code'):
            witness.findings(witness.stored('1.1'), 'not what abidw writes')
        with mock.patch.dict('os.environ', PATH='/nowhere'), self.assertRaises(FileNotFoundError):
            witness.findings(witness.stored('1.1'), witness.stored('1.1'))


if __name__ == '__main__':
    if not shutil.which('abidiff'):
        sys.exit('abidiff is not here: install abigail-tools, as tools/setup --tests does')
    unittest.main(argv=sys.argv[:1])
