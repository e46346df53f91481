#!/usr/bin/env python3
"""Layout of every struct of the interface, as a compiler sees it.

Usage: layout.py VERSION   prints the table of that version (1.0, 1.1) for the headers of this tree
       layout.py --write   replaces layout-<newest>.tsv; older tables are never written again
"""

import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
HEADERS = os.path.join(HERE, '..', 'include')
VERSIONS = ['1.0', '1.1']
TYPES = {'int8_t': 'i8', 'uint8_t': 'u8', 'uint16_t': 'u16', 'int32_t': 'i32', 'uint32_t': 'u32',
         'int64_t': 'i64', 'uint64_t': 'u64', 'float': 'f32', 'double': 'f64'}
LANGUAGES = {'c11': ['-x', 'c', '-std=c11'], 'c++20': ['-x', 'c++', '-std=c++20']}


def read_fields(path=os.path.join(HERE, 'fields.txt')):
    """[(struct, 'frozen' | 'grows', [(member, version that brought it)])]"""
    structs = []
    with open(path, encoding='utf-8') as file:
        for line in file:
            words = line.split()
            if not words or line.startswith('#'):
                continue
            if not line[0].isspace():
                structs.append((words[0], words[1], []))
                words, version = words[2:], '1.0'
            for word in words:
                if word.endswith(':'):
                    version = word[:-1]
                else:
                    structs[-1][2].append((word, version))
    return structs


def program(structs, version):
    """A C and C++ source that refuses to compile when a struct has a hole or a member that the list
    lacks, and prints the table."""
    lines = ['#include "mri/mri.h"', '#include <stddef.h>', '#include <stdio.h>',
             '#ifdef __cplusplus', '#define CHECK static_assert',
             'template <class T> const char* type_of(const T&) { return "other"; }',
             *(f'template <> const char* type_of(const {t}&) {{ return "{n}"; }}'
               for t, n in TYPES.items()),
             '#else', '#define CHECK _Static_assert',
             '#define type_of(x) _Generic((x), ' +
             ', '.join(f'{t}: "{n}"' for t, n in TYPES.items()) + ', default: "other")',
             '#endif',
             'CHECK(sizeof(void*) == 8, "64-bit only");', 'int main(void) {',
             'const unsigned one = 1;',
             'if (*(const unsigned char*)&one != 1) return 1;  // little-endian only']
    for struct, kind, members in structs:
        names = [name for name, since in members
                 if VERSIONS.index(since) <= VERSIONS.index(version)]
        total = ' + '.join(f'sizeof((({struct}*)0)->{name})' for name in names)
        lines.append(f'CHECK(sizeof({struct}) == {total}, "{struct}: hole or unlisted member");')
        for name in names:
            lines.append(f'{{ static {struct} s; (void)s; '
                         f'printf("{struct}\\t{kind}\\t{name}\\t%zu\\t%zu\\t%s\\n", '
                         f'offsetof({struct}, {name}), sizeof(s.{name}), type_of(s.{name})); }}')
    return '\n'.join(lines + ['return 0;', '}', ''])


def table(version, compiler='cc', language='c11', headers=HEADERS, structs=None):
    """The table's text. Raises RuntimeError with the compiler's words."""
    macro = 'MRI_' + version.replace('.', '_')
    with tempfile.TemporaryDirectory() as folder:
        source, binary = os.path.join(folder, 'layout.c'), os.path.join(folder, 'layout')
        with open(source, 'w', encoding='utf-8') as file:
            file.write(program(structs or read_fields(), version))
        run = subprocess.run([compiler, *LANGUAGES[language], '-Wall', '-Wextra', '-Werror', '-I',
                              headers, f'-DMRI_TARGET_VERSION={macro}', source, '-o', binary],
                             capture_output=True, text=True)
        if run.returncode != 0:
            raise RuntimeError(run.stderr)
        return subprocess.run([binary], capture_output=True, text=True, check=True).stdout


def stored(version):
    with open(os.path.join(HERE, f'layout-{version}.tsv'), encoding='utf-8') as file:
        return file.read()


def append_findings(old, new):
    """What a table changes that an older one promised: rows may only be added at the end of a
    struct that grows, or as whole structs."""
    def by_struct(text):
        structs = {}
        for line in text.splitlines():
            struct, kind, *row = line.split('\t')
            structs.setdefault((struct, kind), []).append(row)
        return structs

    before, after = by_struct(old), by_struct(new)
    for key, rows in before.items():
        now = after.get(key)
        if now is None:
            yield f'{key[0]}: gone, or no longer {key[1]}'
        elif now[:len(rows)] != rows:
            changed = next(r for i, r in enumerate(rows) if i >= len(now) or now[i] != r)
            yield f'{key[0]}.{changed[0]}: moved, retyped or removed'
        elif key[1] == 'frozen' and len(now) != len(rows):
            yield f'{key[0]}: frozen, but has new members'


def main():
    if sys.argv[1:] == ['--write']:
        newest = VERSIONS[-1]
        with open(os.path.join(HERE, f'layout-{newest}.tsv'), 'w', encoding='utf-8') as file:
            file.write(table(newest))
    elif len(sys.argv) == 2 and sys.argv[1] in VERSIONS:
        sys.stdout.write(table(sys.argv[1]))
    else:
        sys.exit(__doc__)


if __name__ == '__main__':
    main()
