"""How a worker gets into the object store: the archive's URL, and the driver's own credentials.

On a cluster the workers are other machines, whose environment has no keys. So what the driver's
environment says of the object store goes with the code of each task.

Rules.
1. Secrets are in no row, no plan, no option and no message: this is pickled with the task's code
   and printed as its URL alone. Spark sends code encrypted where `spark.network.crypto.enabled`,
   or `spark.ssl.rpc.enabled`, says so.
2. Nothing is written to disk, and a worker's environment is left as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lamina.archive.open_archive import open_archive
from lamina.storage import machine
from lamina.storage.objects import Objects, open_objects

VARIABLES = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_REGION": "region",
    "AWS_DEFAULT_REGION": "region",
    "AWS_ENDPOINT_URL": "endpoint",
}


@dataclass(frozen=True, slots=True)
class Access:
    """An archive that can be opened in another process."""

    url: str
    options: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, objects: Objects) -> Access:
        """Takes along what the environment of this process says."""
        if not objects.url.startswith(("s3://", "s3a://")):
            return cls(objects.url)
        found = {
            option: machine.ENVIRONMENT[name]
            for name, option in VARIABLES.items()
            if name in machine.ENVIRONMENT
        }
        return cls(objects.url, found)

    def open(self) -> Objects:
        """Opens the archive, here and now."""
        if self.url.startswith(("s3://", "s3a://")):
            return open_objects(self.url, **self.options)
        objects = open_archive(self.url)
        assert objects is not None, "an archive has a name"
        return objects
