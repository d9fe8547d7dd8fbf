#!/bin/sh
# Finds or installs a Chromium for the console's tests; says so when it cannot, and never fails.
set -u
playwright=$1

if command -v chromium >/dev/null 2>&1; then
    echo "console tests: using $(command -v chromium)"
    exit 0
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    as_root="sudo -n"
fi
if command -v apt-get >/dev/null 2>&1; then
    echo "console tests: installing Debian's chromium"
    { $as_root apt-get update -qq; $as_root apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1
fi
if command -v chromium >/dev/null 2>&1; then
    exit 0
fi
echo "console tests: apt-get did not work; trying Playwright's own Chromium"
if "$playwright" install chromium >/dev/null 2>&1; then
    exit 0
fi
echo "console tests: NO CHROMIUM could be installed; the tests in a browser will be SKIPPED." >&2
echo "               Install one (apt-get install chromium) and run make test again." >&2
exit 0
