"""The built-in corpus ``stdlib``: source text of modules that every CPython 3.11-3.13 has.

It lets the first command work with no network and no files. Its content differs between Python builds, so its
hash is recorded with every run and no golden value may rest on it.
"""

import hashlib
import sysconfig
from pathlib import Path

MODULES: tuple[str, ...] = tuple(
    """
    _collections_abc _markupbase _osx_support _pydecimal _pyio _strptime argparse ast
    asyncio.base_events asyncio.events asyncio.futures asyncio.locks asyncio.proactor_events
    asyncio.selector_events asyncio.sslproto asyncio.streams asyncio.tasks asyncio.unix_events
    asyncio.windows_events base64 bdb calendar cmd codecs collections compileall
    concurrent.futures._base concurrent.futures.process configparser contextlib csv ctypes ctypes._aix
    ctypes.util dataclasses difflib dis doctest email._header_value_parser email._parseaddr
    email._policybase email.charset email.feedparser email.generator email.header email.headerregistry
    email.message email.utils enum fileinput fractions ftplib functools gettext gzip heapq html.parser
    http.client http.cookiejar http.cookies http.server imaplib importlib._bootstrap
    importlib._bootstrap_external importlib.metadata inspect ipaddress json json.decoder json.encoder
    locale logging logging.config logging.handlers lzma mailbox mimetypes modulefinder
    multiprocessing.connection multiprocessing.forkserver multiprocessing.managers multiprocessing.pool
    multiprocessing.process multiprocessing.queues multiprocessing.shared_memory
    multiprocessing.synchronize multiprocessing.util ntpath optparse os pdb pickle pickletools pkgutil
    platform plistlib poplib posixpath pprint profile pstats pydoc pydoc_data.topics random re
    re._compiler re._parser runpy selectors shlex shutil smtplib socket socketserver ssl statistics
    stringprep subprocess sysconfig tarfile tempfile textwrap threading timeit tokenize tomllib._parser
    trace traceback tracemalloc typing unittest.case unittest.loader unittest.mock unittest.suite
    urllib.parse urllib.request uuid warnings wave weakref webbrowser wsgiref.handlers wsgiref.validate
    xml.dom.expatbuilder xml.dom.minidom xml.dom.xmlbuilder xml.etree.ElementPath xml.etree.ElementTree
    xml.sax.expatreader xml.sax.handler xml.sax.saxutils xml.sax.xmlreader xmlrpc.client xmlrpc.server
    zipfile zipimport zoneinfo._zoneinfo
    """.split()
)


# Ranked by hash of the name, so that the choice does not depend on the Python build nor on the order of the list.
VALIDATION = frozenset(sorted(MODULES, key=lambda module: hashlib.sha256(module.encode()).hexdigest())[:32])


def find_modules() -> dict[str, Path]:
    """Map each module of `MODULES` found in the standard library to its source file.

    Nothing is imported. A module that this Python lacks is left out; the corpus hash covers what was found.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = {module: root.joinpath(*module.split(".")).with_suffix(".py") for module in MODULES}
    packages = {module: file.with_suffix("") / "__init__.py" for module, file in files.items()}
    files_here = {module: file if file.is_file() else packages[module] for module, file in files.items()}
    return {module: file for module, file in files_here.items() if file.is_file()}
