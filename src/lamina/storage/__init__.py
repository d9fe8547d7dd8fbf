"""The only code that touches the operating system and the object store.

    files              files, directories, atomic replacement, fsync: `Files`, `LocalFiles`
    open_files         how many files stay open, and which idle one is closed next
    kept_file          a file that is closed while it is idle, and opened again with the next call
    descriptors        how files and connections share the descriptors of the process
    bad_pages          reads around pages that the device does not deliver
    locks              the lock that makes a process the only writer of a directory
    local_sockets      sockets that are files, in a directory that is closed to others
    kernel_cache       where compiled kernels are kept: the first place that works
    background_work    a thread that works later, which a fork and the end of the process wait for
    programs           programs of this machine, found or written for this user
    machine            the environment, processors, and trees of files as jobs walk them
    paths              every file name and object key: built and parsed here, and nowhere else
    objects            an object store: get, put on a condition, list, delete (obstore)
    object_directory   a directory that behaves as an object store

Everything above takes a `Files` or an `Objects` as an argument. The fault harness passes its own:
a simulated disk that tracks whether each byte and each name is durable, and can lose power, fill
up, fail any call or lie. No production code has a switch for tests.

Rules.
1. `Files.replace` is the one way to replace a file: write a temporary file, sync it, rename it,
   sync the directory. After a crash the old content is there, or the new one.
2. A descriptor whose sync has failed is never synced again: the kernel may have dropped the pages.
3. parse(build(x)) == x for every name, and a name that is not ours parses to None, never to an
   exception: a data directory may hold files of others.
4. An object is replaced only on the condition that it is the one that was read.
5. No other package imports `os` or `shutil`, joins paths by hand or makes `LocalFiles` in passing.
6. What cannot be done raises OSError here; typed errors are made where it is known what was tried.

Where to look.
- what is synced, and when: `Files.replace`, `Files.sync_directory`
- how a segment, a WAL file or an object is named: `paths`
- retries against an object store: `objects`
"""
