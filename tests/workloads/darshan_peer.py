"""Run by a python that has the package darshan: every record of a log as it reads them, as JSON."""

import json
import sys

from darshan.backend import cffi_backend as backend

COUNTED = ("POSIX", "MPI-IO", "STDIO", "H5F", "H5D", "PNETCDF_FILE", "PNETCDF_VAR")
for path in sys.argv[1:]:
    log = backend.log_open(path)
    job, modules = backend.log_get_job(log), backend.log_get_modules(log)
    found = {
        "processes": job["nprocs"], "run_time_s": job["run_time"], "exe": backend.log_get_exe(log),
        "partial": sorted(name for name, each in modules.items() if each["partial_flag"]), "records": {},
        "names": {str(k): v for k, v in backend.log_get_name_records(log).items()},
    }  # fmt: skip
    for name in COUNTED:
        rows = []
        while name in modules and (record := backend.log_get_record(log, name, dtype="dict")) is not None:
            rows.append([record["id"], record["rank"], record["counters"], record["fcounters"]])
        if rows:
            found["records"][name] = rows
    stripes = []
    while "LUSTRE" in modules and (record := backend.log_get_record(log, "LUSTRE", dtype="dict")) is not None:
        stripes.append(
            [record["id"], record["rank"], [list(each["counters"].values()) for each in record["components"]],
             [ost for each in record["components"] for ost in each["ost_ids"]]]
        )  # fmt: skip
    found["stripes"] = stripes
    backend.log_close(log)
    sys.stdout.write(json.dumps(found, default=lambda value: value.item()) + "\n")
