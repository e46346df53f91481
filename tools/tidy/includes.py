"""Who may include whom. The table is the one in ARCHITECTURE.md; nothing else is allowed."""

import os
import re

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')

C_STANDARD = set(
    'assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal '
    'stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string tgmath '
    'threads time uchar wchar wctype'.split()
)
POSIX = set(
    'aio dirent dlfcn elf fcntl fnmatch ftw glob poll pthread sched semaphore spawn strings syslog '
    'termios ucontext unistd cpuid'.split()
)
INTRINSICS = {'immintrin.h', 'x86intrin.h', 'arm_neon.h'}

# First match wins: what an include names -> the library it belongs to.
LIBRARIES = [
    (r'absl/base/thread_annotations\.h$', 'thread_annotations'),
    (r'absl/', 'absl'),
    (r'boost/dll', 'boost_dll'),
    (r'boost/program_options', 'boost_program_options'),
    (r'boost/(beast|asio)', 'boost_beast'),
    (r'boost/', 'boost'),
    (r'openssl/', 'openssl'),
    (r'sqlite3\.h$', 'sqlite'),
    (r'prometheus/', 'prometheus'),
    (r'toml\+\+/', 'toml'),
    (r'nlohmann/', 'json'),
    (r'hwy/', 'hwy'),
    (r'(oneapi/)?dnnl', 'dnnl'),
    (r'(llama|ggml|gguf)[\w-]*\.h$', 'llama'),
    (r'(gtest|gmock)/', 'gtest'),
    (r'benchmark/', 'benchmark'),
    (r'cu(da|blas)\w*\.h$|cuda/|cooperative_groups', 'cuda'),
    (r'omp\.h$', 'omp'),
    (r'sanitizer/', 'sanitizer'),
    (r'cxxabi\.h$', 'std'),
    (r'(sys|netinet|arpa|linux)/', 'posix'),
]

ANY = None
SYSTEM = {'c', 'std', 'posix', 'intrinsics', 'omp'}
CORE = SYSTEM | {'absl', 'thread_annotations', 'boost', 'json', 'mri/', 'core/'}

# Area (the longest that fits) -> what it may include: libraries, and folders of the tree. A plugin
# may include its own folder besides.
ALLOWED = {
    'mri/include': {'c', 'mri/include/'},
    'mri': {'c', 'std', 'mri/'},
    'kernels': SYSTEM | {'hwy', 'dnnl', 'cuda', 'kernels/'},
    'plugins': {'c', 'std', 'intrinsics', 'cuda', 'mri/include/', 'mri/sdk/'},
    'examples': {'c', 'std', 'mri/include/', 'mri/sdk/', 'examples/'},
    'adapters': SYSTEM | {'thread_annotations', 'llama', 'json', 'mri/', 'kernels/', 'adapters/'},
    'core': CORE,
    'core/base': CORE | {'openssl'},
    'core/plugin': CORE | {'boost_dll'},
    'core/config': CORE | {'toml'},
    'core/metrics': CORE | {'prometheus'},
    'core/route': CORE | {'openssl', 'sqlite', 'toml'},
    'core/http': CORE | {'boost_beast'},
    'tools': CORE
    | {'boost_program_options', 'boost_beast', 'llama'}
    | {'kernels/', 'adapters/', 'tools/'},
    'tests': ANY,
    'bench': ANY,
}

# Inside core an include may go right or stay, never left, nor across a group.
CORE_ORDER = [
    {'http'},
    {'route'},
    {'engine'},
    {'batch'},
    {'plugin'},
    {'config', 'metrics'},
    {'base'},
]

ROOTS = ['', 'mri/include', 'mri/sdk', 'mri']


def resolve(name, quoted, source, files):
    """The path in the tree that an include names, or None for a system or library header."""
    above, folder = [], os.path.dirname(source)
    while folder:
        above.append(folder)
        folder = os.path.dirname(folder)
    for root in above[: None if quoted else 0] + ROOTS:
        path = os.path.normpath(os.path.join(root, name))
        if path in files:
            return path
    return None


def library(name):
    """The library a header outside the tree belongs to; None when the table knows none."""
    for pattern, found in LIBRARIES:
        if re.match(pattern, name):
            return found
    if name in INTRINSICS:
        return 'intrinsics'
    stem, extension = os.path.splitext(name)
    if not extension and '/' not in stem:
        return 'std'
    if extension == '.h' and stem in C_STANDARD:
        return 'c'
    if extension == '.h' and stem in POSIX:
        return 'posix'
    return None


def core_rank(path):
    folder = path.split('/')[1]
    return next((i for i, group in enumerate(CORE_ORDER) if folder in group), None)


def core_goes_left(source, target):
    if source.split('/')[1] == target.split('/')[1]:
        return False
    here, there = core_rank(source), core_rank(target)
    return here is None or there is None or there <= here


def check(source, text, files):
    """Yields (line, message) for each include of `source` that the table forbids."""
    areas = [a for a in ALLOWED if source.startswith(a + '/')]
    if not areas:
        return
    area = max(areas, key=len)
    allowed = ALLOWED[area]
    if allowed is ANY:
        return
    own_plugin = '/'.join(source.split('/')[:3]) + '/' if area == 'plugins' else None
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        name = match.group(2)
        path = resolve(name, match.group(1) == '"', source, files)
        if path is None:
            found = library(name)
            if found is None and match.group(1) == '"':
                yield number, f'"{name}" is neither in the tree nor in the include table'
            elif found is None:
                yield number, f'<{name}> is no library of the table in tools/tidy/includes.py'
            elif found not in allowed:
                yield number, f'{area}/ may not include {found} (<{name}>)'
        elif own_plugin and path.startswith(own_plugin):
            continue
        elif not any(a.endswith('/') and path.startswith(a) for a in allowed):
            yield number, f'{area}/ may not include {path}'
        elif (
            source.startswith('core/') and path.startswith('core/') and core_goes_left(source, path)
        ):
            yield number, f'{os.path.dirname(source)} may not include {path}, it stands left'
