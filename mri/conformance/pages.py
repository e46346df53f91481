#!/usr/bin/env python3
"""The pages that are made from the tests: the table in README.md, the must-pass lists, RESULTS.md.

Usage: pages.py [--check] MRI_CONFORM           the table and the lists
       pages.py --results [--check] PACKAGE...  rows of RESULTS.md, from what --official writes
"""

import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BEGIN, END = '<!-- tests -->\n', '<!-- /tests -->\n'
RESULTS_HEAD = '|---|---|---|---|\n'
VERSIONS = ('1.0', '1.1')


def said(program, *arguments):
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout


def pages(program):
    """Path -> text, as it must be."""
    readme = os.path.join(HERE, 'README.md')
    with open(readme) as file:
        before, rest = file.read().split(BEGIN)
    after = rest.split(END)[1]
    table = said(program, '--list', '--markdown')
    made = {readme: before + BEGIN + table + END + after}
    for version in VERSIONS:
        made[os.path.join(HERE, f'must_pass-{version}.txt')] = said(program, '--must-pass', version)
    return made


def check(program):
    stale = []
    for path, text in pages(program).items():
        with open(path) as file:
            if file.read() != text:
                stale.append(path)
    for path in stale:
        print(f'{path}: not what {program} makes of its tests; run mri/conformance/pages.py')
    return 1 if stale else 0


def write(program):
    for path, text in pages(program).items():
        with open(path, 'w') as file:
            file.write(text)
    return 0


def row(package):
    """Name and line of the plugin of an official package."""
    with open(os.path.join(package, 'result.json')) as file:
        result = json.load(file)
    facts = result['plugin']
    name = os.path.basename(facts['path'])[: -len('.so')]
    cells = [name, facts['version']]
    for run in result['runs']:
        n = run['summary']
        bad = sum(n.get(status, 0) for status in ('FAIL', 'CRASH', 'TIMEOUT'))
        shown = [n.get(status, 0) for status in ('PASS', 'WARN', 'NOT_SUPPORTED')] + [bad]
        cells.append('not spoken' if 'not_spoken' in run else ' / '.join(map(str, shown)))
    return name, '| ' + ' | '.join(cells) + ' |\n'


def results(packages, is_check):
    """Puts the rows of these packages into RESULTS.md, or compares them with it."""
    path = os.path.join(HERE, 'RESULTS.md')
    with open(path) as file:
        before, rows = file.read().split(RESULTS_HEAD)
    rows = {line.split(' ')[1]: line for line in rows.splitlines(keepends=True)}
    found = dict(row(package) for package in packages)
    if is_check:
        stale = [line for name, line in found.items() if rows.get(name) != line]
        for line in stale:
            print(f'{path}: has another row; run {__file__} --results: {line}', end='')
        return 1 if stale else 0
    rows.update(found)
    with open(path, 'w') as file:
        file.write(before + RESULTS_HEAD + ''.join(rows[name] for name in sorted(rows)))
    return 0


def main():
    arguments = sys.argv[1:]
    is_check = '--check' in arguments
    named = [a for a in arguments if not a.startswith('--')]
    if '--results' in arguments:
        return results(named, is_check)
    return check(named[0]) if is_check else write(named[0])


if __name__ == '__main__':
    sys.exit(main())
