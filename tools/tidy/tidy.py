#!/usr/bin/env python3
"""The style-and-include test: prints one line per finding, exits 1 when there is any.

Usage: tidy.py [ROOT]     ROOT is the source tree (default: the one this file lies in)
"""

import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import includes  # noqa: E402

COLUMNS_MAX = 100
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = {'.cu': 120, '.cuh': 120}
FUNCTION_LINES_DEFAULT = 70
BLOB_BYTES_MAX = 1 << 20

SOURCES = {'.c', '.cc', '.cpp', '.cu'}
CPP = SOURCES | {'.h', '.hpp', '.cuh'}
COLUMNS_CHECKED = CPP | {'.py', '.sh', ''}
TEXT = COLUMNS_CHECKED | {'.cmake', '.md', '.toml', '.json', '.txt', '.env', '.supp', '.yml'}

# Written in pieces, so that this file does not find itself.
MARKERS = re.compile(
    r'\b('
    + '|'.join(
        [
            'to' 'do',
            'fix' 'me',
            'x' 'xx',
            'not ' 'implemented',
            'stu' 'b(?:s|bed)?',
            'place' 'holder',
        ]
    )
    + r')\b',
    re.I,
)
MARKERS_ALLOWED = re.compile(r'no_cuda|stu' r'b process|template\b.*place' r'holder', re.I)
MACHINE_PATHS = re.compile(
    r'(?<![\w.$}])/(?:wo' r'rk|ro' r'ot|ho' r'me/\w+)/|/tm' r'p/(?:exp|build|varve)'
)
REGISTRY_HOSTS = re.compile(r'deb\.deb' r'ian\.org|py' r'pi\.org|pythonho' r'sted')


def extension(path):
    return os.path.splitext(path)[1]


def blank(text):
    """The text with comments, literals and preprocessor lines blanked; line breaks stay."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\''
        r'|^[ \t]*#(?:\\\n|[^\n])*',
        re.S | re.M,
    )
    return pattern.sub(lambda m: re.sub(r'[^\n]', ' ', m.group()), text)


def functions(text):
    """Yields (line, lines) of each function body, from its opening to its closing brace."""
    text = blank(text)
    stack, head_start, line = [], 0, 1
    for position, char in enumerate(text):
        if char == '\n':
            line += 1
        elif char == ';' and not (stack and stack[-1][0] == 'body'):
            head_start = position + 1
        elif char == '{':
            head = text[head_start:position].strip()
            stack.append((brace_kind(head, stack), line))
            head_start = position + 1
        elif char == '}' and stack:
            kind, first = stack.pop()
            head_start = position + 1
            if kind == 'function':
                yield first, line - first + 1


def brace_kind(head, stack):
    """What an opening brace opens, given the text since the last brace or semicolon."""
    if stack and stack[-1][0] != 'scope':
        return 'body'
    # The keyword with no parenthesis behind it; or in front, an attribute macro may follow.
    words = r'\b(namespace|class|struct|union|enum|extern)\b'
    if re.search(words + r'[^()]*$', head):
        return 'scope'
    if re.match(r'(template\s*<.*>\s*)?' + words, head, re.S) and not re.search(
        r'\)\s*(const|noexcept|override|final|\s)*$', head
    ):
        return 'scope'
    if head.endswith('='):
        return 'body'
    # Empty or a comma: what follows the braces of a constructor's member initialiser.
    return 'function' if '(' in head or head == '' or head[0] == ',' else 'body'


def check_text(path, text):
    """Yields (line, message) for findings that need only this file."""
    kind = extension(path)
    lines = text.splitlines()
    if kind in CPP | {'.py'} and len(lines) > FILE_LINES_MAX:
        yield len(lines), f'{len(lines)} lines, {FILE_LINES_MAX} at most: one subject per file'
    for number, line in enumerate(lines, 1):
        if kind in COLUMNS_CHECKED and len(line) > COLUMNS_MAX:
            yield number, f'{len(line)} columns, {COLUMNS_MAX} at most'
        if path != 'LICENSE' and MARKERS.search(line) and not MARKERS_ALLOWED.search(line):
            yield number, f'leftover marker "{MARKERS.search(line).group()}"'
        if MACHINE_PATHS.search(line):
            yield number, f'path of one machine "{MACHINE_PATHS.search(line).group()}"'
        if REGISTRY_HOSTS.search(line):
            yield number, 'name of a package host: the client\'s own settings hold'
    if kind in CPP:
        limit = FUNCTION_LINES_MAX.get(kind, FUNCTION_LINES_DEFAULT)
        for number, length in functions(text):
            if length > limit:
                yield number, f'function of {length} lines, {limit} at most'


def cmake_words(text):
    """The words of a CMake file, without comments and with the current folder's prefix dropped."""
    text = re.sub(r'#[^\n]*', '', text).replace('${CMAKE_CURRENT_SOURCE_DIR}/', '')
    words = set(re.split(r'[\s()";]+', text.replace('${CMAKE_SOURCE_DIR}/', '/')))
    # A function or loop over names: name and ${op}_bench.cpp stand for name_bench.cpp.
    endings = {match.group(1) for word in words if (match := re.fullmatch(r'\$\{\w+\}(.+)', word))}
    return words | {word + ending for word in words for ending in endings}


def check_listed(files, words):
    """Yields findings for sources and folders that no CMakeLists.txt names."""
    named = set()
    for path, known in words.items():
        folder = os.path.dirname(path)
        for word in known - {'', '.'}:
            named.add(
                word[1:] if word.startswith('/') else os.path.normpath(os.path.join(folder, word))
            )
    for path in files:
        target = os.path.dirname(path) if path in words and path != 'CMakeLists.txt' else path
        source = extension(path) in SOURCES or path.endswith('_test.py')
        if (source or target != path) and target not in named:
            yield path, 1, 'no CMakeLists.txt names it: it is not built'


def check_headers_used(files, texts):
    """Yields findings for headers outside mri/include that nothing includes."""
    included = set()
    for path, text in texts.items():
        if extension(path) not in CPP:
            continue
        for line in text.splitlines():
            match = includes.INCLUDE.match(line)
            if match:
                included.add(includes.resolve(match.group(2), match.group(1) == '"', path, files))
            for name in re.findall(
                r'"([\w/]+\.(?:h|hpp|cpp|cu))"', line
            ):  # Highway's HWY_TARGET_INCLUDE
                included.add(includes.resolve(name, True, path, files))
    for path in files:
        if (
            extension(path) in {'.h', '.hpp', '.cuh'}
            and path not in included
            and not path.startswith('mri/')
        ):
            yield path, 1, 'nothing includes this header'


def clang_format():
    """clang-format 14, the version the tree is formatted with; None when it is not installed."""
    tool = shutil.which('clang-format-14') or shutil.which('clang-format')
    if (
        tool
        and ' 14.' in subprocess.run([tool, '--version'], capture_output=True, text=True).stdout
    ):
        return tool
    return None


def check_format(root, files):
    """Yields the first line of each file that clang-format would write differently."""
    tool = clang_format()
    cpp = [f for f in files if extension(f) in CPP]
    if not tool or not cpp:
        return
    run = subprocess.run(
        [tool, '--dry-run', '-Werror', *cpp], cwd=root, capture_output=True, text=True
    )
    seen = set()
    for path, line in re.findall(r'^(\S+?):(\d+):\d+: error:', run.stderr, re.M):
        if path not in seen:
            seen.add(path)
            yield path, int(line), 'not as clang-format writes it: clang-format -i ' + path


def list_files(root):
    """Files that git tracks or would track; without git, all outside build/ and .git/."""
    run = subprocess.run(
        ['git', 'ls-files', '-co', '--exclude-standard', '-z'],
        cwd=root,
        capture_output=True,
        text=True,
    )
    if run.returncode == 0:
        found = run.stdout.split('\0')
    else:
        found = [
            os.path.relpath(os.path.join(folder, name), root)
            for folder, _, names in os.walk(root)
            for name in names
        ]
        found = [f for f in found if not f.startswith(('build/', '.git/'))]
    return sorted({f for f in found if f and os.path.isfile(os.path.join(root, f))})


def check_tree(root):
    """Yields (path, line, message) for every finding in the tree at `root`."""
    files = list_files(root)
    texts = {}
    for path in files:
        full = os.path.join(root, path)
        if os.path.getsize(full) > BLOB_BYTES_MAX:
            yield path, 1, f'{os.path.getsize(full)} bytes, {BLOB_BYTES_MAX} at most'
        elif extension(path) in TEXT:
            with open(full, encoding='utf-8', errors='replace') as file:
                texts[path] = file.read()
    known = set(files)
    for path, text in texts.items():
        for line, message in check_text(path, text):
            yield path, line, message
        if extension(path) in CPP:
            for line, message in includes.check(path, text, known):
                yield path, line, message
    words = {p: cmake_words(t) for p, t in texts.items() if os.path.basename(p) == 'CMakeLists.txt'}
    yield from check_listed(files, words)
    yield from check_headers_used(known, texts)
    yield from check_format(root, files)


def main():
    default = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
    root = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else default)
    findings = sorted(check_tree(root))
    for path, line, message in findings:
        print(f'{path}:{line}: {message}')
    print(f'tidy: {len(findings)} finding(s)')
    return 1 if findings else 0


if __name__ == '__main__':
    sys.exit(main())
