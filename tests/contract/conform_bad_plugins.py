#!/usr/bin/env python3
"""Every deliberately bad plugin must be caught by mri-conform, in the test that this table names.

Usage: conform_bad_plugins.py MRI_CONFORM FOLDER
"""

import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

SOUND = {'quantizer-sound', 'quantizer-old_1_0', 'quantizer-min_1_1', 'quantizer-any_thread'}

# Fixture -> the test that catches it, and the status that it must have there ('' for any bad one).
CAUGHT = {
    # Before it is loaded.
    'quantizer-two_symbols': ('static.file', 'FAIL'),
    'quantizer-exports_malloc': ('static.file', 'FAIL'),
    'quantizer-gnu_unique': ('static.file', 'FAIL'),
    'quantizer-static_tls': ('static.file', 'FAIL'),
    'quantizer-rpath': ('static.file', 'FAIL'),
    # By the loader, before a function runs, and at open.
    'quantizer-missing_symbol': ('load.host', 'FAIL'),
    'quantizer-wrong_magic': ('load.host', 'FAIL'),
    'quantizer-short_struct': ('load.host', 'FAIL'),
    'quantizer-min_above_max': ('load.host', 'FAIL'),
    'quantizer-null_open': ('load.host', 'FAIL'),
    'quantizer-bad_id': ('load.host', 'FAIL'),
    'quantizer-bad_params': ('load.host', 'FAIL'),
    'quantizer-unknown_kind': ('load.host', 'FAIL'),
    'quantizer-major_2_entry': ('load.host', 'FAIL'),
    'quantizer-refuses_open': ('load.life', 'FAIL'),
    'quantizer-null_activate': ('load.life', 'FAIL'),
    'quantizer-no_table': ('load.life', 'FAIL'),
    'quantizer-null_in_table': ('load.life', 'FAIL'),
    'quantizer-newer_glibc': ('static.file', 'FAIL'),
    'quantizer-newer_glibcxx': ('static.file', 'FAIL'),
    # By a process of its own.
    **{f'quantizer-{trouble}_in_{place}': (test, status)
       for place, test in (('constructor', 'load.host'), ('open', 'load.life'),
                           ('caps', 'load.caps'), ('close', 'load.life'))
       for trouble, status in (('crash', 'CRASH'), ('abort', 'CRASH'), ('exit', 'CRASH'),
                               ('hang', 'TIMEOUT'), ('fork', 'FAIL'))},
    'quantizer-atexit_crash': ('load.life', 'CRASH'),
    'quantizer-fork_in_activate': ('load.life', 'FAIL'),
    'quantizer-hang_in_encode': ('quantizer.roundtrip', 'TIMEOUT'),
    # By the checks.
    'quantizer-thread_left': ('load.process', 'FAIL'),
    **{f'quantizer-thread_in_{place}': ('load.process', 'FAIL')
       for place in ('constructor', 'open', 'caps', 'close')},
    'quantizer-thread_until_close': ('load.process', 'FAIL'),
    'quantizer-thread_exit': ('load.thread-exit', 'FAIL'),
    'quantizer-unchecked_memory': ('load.no-memory', 'CRASH'),
    'quantizer-wrong_without_memory': ('load.no-memory', 'FAIL'),
    'quantizer-signal_handler': ('load.process', 'FAIL'),
    'quantizer-leaks_memory': ('load.memory', ''),
    'quantizer-uses_host_late': ('load.process', 'FAIL'),
    'quantizer-equal_size': ('size.response', 'FAIL'),
    'quantizer-writes_past_size': ('size.caps', 'FAIL'),
    'quantizer-big_written': ('size.response', 'FAIL'),
    'quantizer-zero_written': ('size.response', 'FAIL'),
    'quantizer-odd_written': ('size.response', 'FAIL'),
    'quantizer-writes_past_body': ('quantizer.roundtrip', ''),
    'quantizer-changes_input': ('quantizer.roundtrip', 'FAIL'),
    'quantizer-frees_input': ('quantizer.roundtrip', 'CRASH'),
    'quantizer-keeps_pointer': ('quantizer.determinism', ''),
    'quantizer-address_decides': ('quantizer.determinism', 'FAIL'),
    'quantizer-throws': ('quantizer.roundtrip', 'FAIL'),
    'quantizer-cancels_thread': ('quantizer.roundtrip', ''),
    'quantizer-foreign_exception': ('quantizer.roundtrip', 'FAIL'),
    'quantizer-latin1_text': ('quantizer.roundtrip', 'FAIL'),
    'quantizer-status_12345': ('quantizer.roundtrip', 'FAIL'),
    'quantizer-endless_text': ('quantizer.roundtrip', 'FAIL'),
    'kv_tier-moves_sinks': ('kv_tier.legal', 'FAIL'),
    'kv_tier-old_reasons': ('kv_tier.extremes', 'CRASH'),
    'batching-starves': ('batching.no-starvation', 'FAIL'),
    'summary-miscounts': ('summary.limits', 'FAIL'),
    'attention-off': ('attention.exact', 'FAIL'),
    'attention-ignores_device': ('attention.device', 'FAIL'),
    'attention-blocks_in_step': ('attention.blocking', 'FAIL'),
    'quantizer-ignores_device': ('quantizer.device', 'FAIL'),
    'runtime-evict_lies': ('runtime.evict', 'FAIL'),
    'runtime-confirms_unknown': ('runtime.evict-bad', 'FAIL'),
    'runtime-confirms_no_context': ('runtime.unknown', 'FAIL'),
    'runtime-progress_elsewhere': ('runtime.progress', 'FAIL'),
    'runtime-reenters': ('load.life', 'FAIL'),
    'runtime-blocks_in_step': ('runtime.blocking', 'FAIL'),
    'runtime-epoch_back': ('runtime.confirm', 'FAIL'),
    'runtime-short_confirm': ('size.response', 'FAIL'),
    # Speaks no version of today's hosts: refused, and nothing passes.
    'quantizer-major_2': ('', ''),
}
BAD = {'FAIL', 'CRASH', 'TIMEOUT'}


def conform(program, plugin, *options):
    with tempfile.NamedTemporaryFile(suffix='.json') as out:
        done = subprocess.run([program, plugin, '--json', out.name, *options],
                              capture_output=True, text=True)
        text = out.read()
    return done.returncode, json.loads(text) if text else None, done.stdout + done.stderr


def check(program, folder, name):
    """What is wrong with how `name` was judged; '' when it was judged right."""
    plugin = os.path.join(folder, name + '.so')
    if name in SOUND:
        code, _, said = conform(program, plugin)
        return '' if code == 0 else f'{name} is sound, but did not pass:\n{said}'
    test, status = CAUGHT[name]
    options = ['--mri', '1.1', '--timeout', '3' if status == 'TIMEOUT' else '60']
    if test:
        options += ['--reproduce', test]
    code, result, said = conform(program, plugin, *options)
    if code != 1 or result['passed']:
        return f'{name} passes (exit code {code}):\n{said}'
    if not test:
        return ''
    found = {t['id']: t['status'] for run in result['runs'] for t in run['tests']}.get(test)
    right = found == status if status else found in BAD
    wanted = status or 'a bad one'
    return '' if right else f'{name}: {test} says {found}, expected {wanted}:\n{said}'


def check_repeats(program, folder):
    """A plugin that does not load fails every test for one reason, told by static.file and
    load.host alone."""
    plugin = os.path.join(folder, 'quantizer-wrong_magic.so')
    _, result, said = conform(program, plugin, '--mri', '1.1')
    bad = [t for run in result['runs'] for t in run['tests'] if t['status'] in BAD]
    if len(bad) > 5 and said.count('what to do:') == said.count('MRI-E006') == 2:
        return ''
    return f'quantizer-wrong_magic: found {len(bad)} bad tests, one reason expected:\n{said}'


def main():
    program, folder = sys.argv[1:3]
    there = {name[:-3] for name in os.listdir(folder) if name.endswith('.so')}
    wrong = [f'{name} is not in the table' for name in sorted(there - SOUND - set(CAUGHT))]
    wrong += [f'{name} was not built' for name in sorted((SOUND | set(CAUGHT)) - there)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        wrong += pool.map(lambda name: check(program, folder, name),
                          sorted(there & (SOUND | set(CAUGHT))))
    wrong.append(check_repeats(program, folder))
    wrong = [text for text in wrong if text]
    print('\n'.join(wrong) or f'all {len(there)} judged as they should be')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
