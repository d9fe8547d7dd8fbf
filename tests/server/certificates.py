"""Certificates for tests, each signed by itself and good for loopback."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def write_certificate(folder: Path, name: str = "localhost") -> tuple[Path, Path]:
    """Makes cert.pem and key.pem in a folder, or replaces them."""
    program = shutil.which("openssl")
    assert program is not None, "openssl makes the certificate"
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run(
        [*made, "-keyout", key, "-out", certificate], check=True, stderr=subprocess.DEVNULL
    )
    return certificate, key
