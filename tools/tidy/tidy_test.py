"""Feeds the style test bad snippets, which it must find, and good ones, which it must not."""

import os
import tempfile
import unittest

import includes
import tidy


class TreeTest(unittest.TestCase):
    """A small tree in a temporary folder; `find` returns the messages of one file."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.write('CMakeLists.txt', 'add_subdirectory(core)\n')
        self.write('core/CMakeLists.txt', 'add_library(core base/good.cpp)\n')
        self.write('core/base/good.cpp', 'int good() { return 1; }\n')

    def write(self, path, text):
        full = os.path.join(self.folder.name, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, 'w', encoding='utf-8') as file:
            file.write(text)

    def find(self, path):
        return [m for p, _, m in tidy.check_tree(self.folder.name) if p == path]

    def assert_found(self, path, part):
        messages = self.find(path)
        self.assertTrue(any(part in m for m in messages), f'{part!r} not in {messages}')

    def test_good_tree_is_quiet(self):
        self.assertEqual(list(tidy.check_tree(self.folder.name)), [])

    def test_source_that_no_cmake_names(self):
        self.write('core/base/dead.cpp', 'int dead() { return 0; }\n')
        self.assert_found('core/base/dead.cpp', 'not built')

    def test_source_that_is_commented_out_in_cmake(self):
        self.write('core/CMakeLists.txt', 'add_library(core base/good.cpp\n  # base/dead.cpp\n)\n')
        self.write('core/base/dead.cpp', 'int dead() { return 0; }\n')
        self.assert_found('core/base/dead.cpp', 'not built')

    def test_source_that_a_function_names(self):
        self.write('core/CMakeLists.txt', 'add_library(core ${op}_x.cpp base/good.cpp)\nuse(one)\n')
        self.write('core/one_x.cpp', 'int one() { return 0; }\n')
        self.write('core/two_x.cpp', 'int two() { return 0; }\n')
        self.assertEqual(self.find('core/one_x.cpp'), [])
        self.assert_found('core/two_x.cpp', 'not built')

    def test_test_folder_that_is_not_added(self):
        self.write('tests/unit/CMakeLists.txt', '')
        self.assert_found('tests/unit/CMakeLists.txt', 'not built')

    def test_header_that_nothing_includes(self):
        self.write('core/base/dead.h', '#pragma once\n')
        self.assert_found('core/base/dead.h', 'nothing includes')

    def test_large_blob(self):
        self.write('core/table.bin', 'x' * (tidy.BLOB_BYTES_MAX + 1))
        self.assert_found('core/table.bin', 'bytes')

    @unittest.skipUnless(tidy.clang_format(), 'clang-format 14 is not installed')
    def test_format(self):
        self.write('core/base/good.cpp', 'int   good( ){return 1;}\n')
        self.assert_found('core/base/good.cpp', 'clang-format')


class TextTest(unittest.TestCase):
    def messages(self, text, path='core/base/a.cpp'):
        return [m for _, m in tidy.check_text(path, text)]

    def test_columns(self):
        self.assertEqual(self.messages('// ' + 'x' * 97), [])
        self.assertEqual(len(self.messages('// ' + 'x' * 98)), 1)
        self.assertEqual(self.messages('ä' * 100), [])
        self.assertEqual(self.messages('x' * 300, 'README.md'), [])

    def test_markers(self):
        for marker in [
            'TO' 'DO',
            'FIX' 'ME',
            'X' 'XX',
            'not ' 'implemented',
            'a stu' 'b',
            'place' 'holder',
        ]:
            self.assertEqual(len(self.messages(f'int a;  // {marker}: later')), 1, marker)
        self.assertEqual(self.messages('// a subject, a method'), [])

    def test_machine_paths(self):
        for path in ['/wo' 'rk/x', '/ro' 'ot/.cache', '/ho' 'me/me/x', '/tm' 'p/exp/m.gguf']:
            self.assertEqual(len(self.messages(f'const char* p = "{path}";')), 1, path)
        self.assertEqual(self.messages('a/wo' 'rk/b'), [])

    def test_package_hosts(self):
        self.assertEqual(len(self.messages('# see py' 'pi.org', 'tools/a.sh')), 1)

    def test_file_length(self):
        self.assertEqual(self.messages('int a;\n' * 500), [])
        self.assertEqual(len(self.messages('int a;\n' * 501)), 1)

    def test_function_length(self):
        def body(lines, head='void f() {'):
            return (
                'namespace a {\nclass B {\n' + head + '\n' + '  g();\n' * (lines - 2) + '}\n};\n}\n'
            )

        self.assertEqual(self.messages(body(70)), [])
        self.assertEqual(len(self.messages(body(71))), 1)
        self.assertEqual(len(self.messages(body(71, 'B() : a_{1}, b_{2} {'))), 1)
        self.assertEqual(
            len(self.messages(body(71, 'template <class T> auto f(T t) const -> int {'))), 1
        )
        self.assertEqual(self.messages(body(120), 'kernels/cuda/a.cu'), [])
        self.assertEqual(len(self.messages(body(121), 'kernels/cuda/a.cu')), 1)

    def test_tables_and_classes_may_be_long(self):
        self.assertEqual(self.messages('int t[] = {\n' + '  1,\n' * 200 + '};\n'), [])
        self.assertEqual(
            self.messages('struct A {\n' + '  int f(int a) { return a; }\n' * 200 + '};\n'), []
        )

    def test_macros_before_a_scope(self):
        lines = '  int f(int a) { return a; }\n' * 200
        for head in [
            'PUSH(X)\nnamespace a::b',
            'class LOCKABLE(x) A : public B',
            'extern "C"',
            'template <class T>\nstruct ALIGN(64) A',
        ]:
            self.assertEqual(self.messages(head + ' {\n' + lines + '}\n'), [], head)

    def test_braces_in_literals_and_comments_do_not_count(self):
        text = 'int f() { return \'{\'; }  // {\nconst char* s = "{"; /* { */\n#define M {\n' * 30
        self.assertEqual(self.messages(text), [])


class IncludeTest(unittest.TestCase):
    FILES = {
        'mri/include/mri/mri.h',
        'mri/include/mri/kv_view.h',
        'mri/sdk/plugin.hpp',
        'core/base/limits.h',
        'core/engine/lane.h',
        'core/config/load.h',
        'kernels/gemm.h',
        'adapters/light/model/file.h',
        'plugins/attention/dense/plan.h',
        'plugins/attention/hybrid/pick.h',
        'tools/varve/command.h',
    }

    def messages(self, source, include):
        return [m for _, m in includes.check(source, f'#include {include}\n', self.FILES)]

    def test_what_is_allowed(self):
        for source, include in [
            ('mri/include/mri/mri.h', '<stdint.h>'),
            ('mri/include/mri/mri.h', '<mri/kv_view.h>'),
            ('mri/sdk/plugin.hpp', '<mri/mri.h>'),
            ('kernels/cpu/gemm.cpp', '<dnnl.hpp>'),
            ('kernels/cpu/gemm.cpp', '"hwy/highway.h"'),
            ('kernels/cpu/gemm.cpp', '"kernels/gemm.h"'),
            ('plugins/attention/dense/dense.cpp', '<mri/mri.h>'),
            ('plugins/attention/dense/dense.cpp', '"plan.h"'),
            ('adapters/light/a.cpp', '<llama.h>'),
            ('adapters/light/a.cpp', '"absl/base/thread_annotations.h"'),
            ('core/engine/lane.cpp', '"core/base/limits.h"'),
            ('core/config/load.cpp', '<toml++/toml.h>'),
            ('core/plugin/loader.cpp', '<boost/dll.hpp>'),
            ('tools/varve/main.cpp', '"core/engine/lane.h"'),
            ('tests/unit/a.cpp', '"adapters/light/model/file.h"'),
        ]:
            self.assertEqual(self.messages(source, include), [], (source, include))

    def test_what_is_not(self):
        for source, include in [
            ('mri/include/mri/mri.h', '<vector>'),
            ('mri/include/mri/mri.h', '<unistd.h>'),
            ('mri/sdk/plugin.hpp', '"core/base/limits.h"'),
            ('kernels/cpu/gemm.cpp', '"absl/status/status.h"'),
            ('kernels/cpu/gemm.cpp', '<mri/mri.h>'),
            ('kernels/cpu/gemm.cpp', '"core/base/limits.h"'),
            ('plugins/attention/dense/dense.cpp', '"absl/status/status.h"'),
            ('plugins/attention/dense/dense.cpp', '"kernels/gemm.h"'),
            ('plugins/attention/dense/dense.cpp', '"../hybrid/pick.h"'),
            ('adapters/light/a.cpp', '"core/base/limits.h"'),
            ('adapters/light/a.cpp', '"absl/log/log.h"'),
            ('core/engine/lane.cpp', '<boost/dll.hpp>'),
            ('core/engine/lane.cpp', '<toml++/toml.h>'),
            ('core/engine/lane.cpp', '"kernels/gemm.h"'),
            ('core/engine/lane.cpp', '<llama.h>'),
            ('core/base/status.cpp', '"core/engine/lane.h"'),
            ('core/engine/a.cpp', '<fmt/core.h>'),
            ('core/engine/a.cpp', '"tools/varve/command.h"'),
            ('core/engine/a.cpp', '"no_such.h"'),
        ]:
            self.assertEqual(len(self.messages(source, include)), 1, (source, include))


if __name__ == '__main__':
    unittest.main()
