"""A client of the coordinator, over gRPC: `pip install muster[client]`.

    import muster

    with muster.Client() as client:                     # or Client("gpu-head:7070", token=...)
        job = client.run(["python", "train.py"], ranks=4)
        client.wait(job["id"])
        frame = client.metrics_frame(job["id"])         # pandas

Address, token and authority come from the arguments, else from MUSTER_ADDRESS, MUSTER_TOKEN, MUSTER_TOKEN_FILE and
MUSTER_CA, else from ~/.config/muster/context.yaml, as for the command line (docs/configuration.md).

Answers are dicts with the names of proto/jobs.proto. Times are `datetime` in UTC, durations `timedelta`, enums their names
("JOB_STATE_RUNNING"). Every call raises `muster.Error`.
"""

import datetime
import hashlib
import ipaddress
import os
import re
import shutil
import socket
import ssl
import time
import uuid

import grpc
from google.protobuf import duration_pb2, json_format, timestamp_pb2

from muster.proto import jobs_pb2, jobs_service_pb2_grpc
from muster.versions import OLDEST_PROTOCOL, PROTOCOL, VERSION

_ENDED = {"JOB_STATE_COMPLETED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED"}
_CONTEXT_KEYS = {"address", "token", "token_file", "timeout", "ca"}
_PATIENCE = 300  # seconds without the coordinator, of a call that waits for a job
_CONTACT = 10  # seconds after which a stream has been one: an attempt to connect takes less


class Error(Exception):
    """A call that failed. `code` is gRPC's name ("NOT_FOUND"); `spec_errors` are the errors of a spec, all of them."""

    def __init__(self, code, message, spec_errors=()):
        super().__init__(message)
        self.code = code
        self.spec_errors = list(spec_errors)


def _to_dict(message):
    """Fields without presence are always there, others if they are set."""
    if isinstance(message, timestamp_pb2.Timestamp):
        return message.ToDatetime().replace(tzinfo=datetime.timezone.utc)
    if isinstance(message, duration_pb2.Duration):
        return message.ToTimedelta()
    result = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            of = field.message_type.fields_by_name["value"]
            result[field.name] = {key: _value(of, value[key]) for key in value}
        elif _is_repeated(field):
            result[field.name] = [_value(field, item) for item in value]
        elif not field.has_presence or message.HasField(field.name):
            result[field.name] = _value(field, value)
    return result


def _is_repeated(field):
    # `label` is deprecated in newer packages, and `is_repeated` is missing in older ones.
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def _is_map(field):
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _value(field, value):
    if field.message_type is not None:
        return _to_dict(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    return value


def _read_context():
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.environ.get("HOME") or "/", ".config")
    path = os.path.join(folder, "muster", "context.yaml")
    values = {}
    try:
        with open(path) as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return values
    for number, line in enumerate(lines, 1):
        # A flat map of strings, so no YAML package is needed.
        if not line.strip() or line.lstrip().startswith("#") or line.strip() == "---":
            continue
        match = re.fullmatch(r"""([a-z_]+):\s+(?:"([^"]*)"|'([^']*)'|([^\s#"'{\[][^#]*?))\s*(?:#.*)?""", line)
        if match is None or match.group(1) not in _CONTEXT_KEYS:
            raise Error("INVALID_ARGUMENT", f"{path}:{number}: expected one of {', '.join(sorted(_CONTEXT_KEYS))}, "
                        "with a string")
        values[match.group(1)] = next(v for v in match.groups()[1:] if v is not None)
    return values


def _seconds(text):
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    number = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    if re.fullmatch(number, text):
        return float(text)
    if re.fullmatch(rf"({number}[dhms])+", text):
        return sum(float(n) * units[unit] for n, unit in re.findall(r"([0-9.]+)([dhms])", text))
    raise Error("INVALID_ARGUMENT", f'invalid duration "{text}": use 30s, 5m, 1h30m or 7d')


def _read(path, what):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError as error:
        raise Error("NOT_FOUND", f"cannot read {what} {path}: {error.strerror}") from error


def _default_address():
    runtime = os.environ.get("MUSTER_RUNTIME_DIR")
    if not runtime:
        xdg = os.environ.get("XDG_RUNTIME_DIR")
        runtime = os.path.join(xdg, "muster") if xdg else f"/tmp/muster-{os.getuid()}"
        # In /tmp anyone may make a folder of that name and listen in it.
    if os.path.isdir(runtime) and (os.stat(runtime).st_uid != os.getuid() or os.stat(runtime).st_mode & 0o077):
        raise Error("PERMISSION_DENIED", f"{runtime} is not this user's alone; another user could listen there: set "
                    "MUSTER_RUNTIME_DIR to another folder")
    return f"unix:{runtime}/coordinator.sock"


def _split(address):
    host, _, port = address.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise Error("INVALID_ARGUMENT", f"invalid coordinator address {address}: '{port}' is not a port")
    return host.strip("[]"), int(port)


def _is_loopback(host):
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _fetch_authority(address, sha256, timeout):
    """The authority that a token names, from the certificates that the coordinator shows; then the connection is checked
    against it, so it need not be trusted before."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(_split(address), timeout=timeout) as plain:
            with context.wrap_socket(plain) as encrypted:
                if hasattr(encrypted, "get_unverified_chain"):  # Python 3.13
                    chain = encrypted.get_unverified_chain()
                else:
                    chain = [c.public_bytes(2) for c in encrypted._sslobj.get_unverified_chain()]  # 2: DER
    except (OSError, AttributeError) as error:
        raise Error("UNAVAILABLE", f"no TLS connection to the coordinator at {address}: {error}; is it running, and is "
                    "the address right?") from error
    for der in chain:
        if hashlib.sha256(der).hexdigest() == sha256:
            return ssl.DER_cert_to_PEM_cert(der)
    raise Error("PERMISSION_DENIED", f"the coordinator at {address} is not the one that made this token (its authority is "
                f"another than sha256:{sha256[:16]}...): is the address right?")


class Client:
    """Thread-safe. `timeout`: seconds of one call. `ca`: file of the authority that signed the coordinator's certificate;
    tokens of `muster coordinator token create` name it themselves."""

    def __init__(self, address=None, token=None, *, ca=None, timeout=None):
        context = _read_context()
        env = os.environ.get
        self.address = (address or env("MUSTER_ADDRESS") or env("MUSTER_COORDINATOR") or context.get("address") or
                        _default_address())
        if ":" not in self.address:
            raise Error("INVALID_ARGUMENT",
                        f"invalid coordinator address {self.address}: use unix:/path or host:port")
        source = "token" if token else "MUSTER_TOKEN"
        token = token or env("MUSTER_TOKEN")
        if not token:
            path = env("MUSTER_TOKEN_FILE") or context.get("token_file")
            source = path or "token of context.yaml"
            token = _read(path, "the token file").strip() if path else context.get("token", "")
        if not re.fullmatch("[!-~]*", token):
            raise Error("INVALID_ARGUMENT", f"{source}: this is not a token: expected one word of printable ASCII characters")
        if timeout is None:
            text = env("MUSTER_TIMEOUT") or context.get("timeout")
            timeout = _seconds(text) if text else 30.0
        self._timeout = timeout
        ca = ca or env("MUSTER_CA") or context.get("ca")
        authority = _read(ca, "the authority").encode() if ca else None
        self._metadata = [("muster-version", VERSION), ("muster-protocol", str(PROTOCOL)),
                          ("muster-oldest-protocol", str(OLDEST_PROTOCOL))]
        if token:
            self._metadata.append(("authorization", f"Bearer {token}"))
        options = [("grpc.max_receive_message_length", 16 << 20), ("grpc.keepalive_time_ms", 20000),
                   ("grpc.keepalive_timeout_ms", 10000), ("grpc.http2.max_pings_without_data", 0),
                   ("grpc.initial_reconnect_backoff_ms", 500), ("grpc.max_reconnect_backoff_ms", 2000),
                   ("grpc.min_reconnect_backoff_ms", 4000)]  # the time of an attempt
        if self.address.startswith("unix:"):
            self._channel = grpc.insecure_channel(self.address, options)
        else:
            parts = token.split(".") if token else []
            if authority is None and len(parts) == 4 and parts[0] == "muster1":
                authority = _fetch_authority(self.address, parts[1], min(timeout, 5)).encode()
            if authority is not None:
                self._channel = grpc.secure_channel(self.address, grpc.ssl_channel_credentials(authority), options)
            elif _is_loopback(_split(self.address)[0]):
                self._channel = grpc.insecure_channel(self.address, options)
            else:
                raise Error("FAILED_PRECONDITION", f"{self.address} is another machine: connections to it need TLS: "
                            "give a token of `muster coordinator token create`, or the coordinator's ca.crt (ca, MUSTER_CA)")
        self._jobs = jobs_service_pb2_grpc.JobsStub(self._channel)
        self._nodes = jobs_service_pb2_grpc.NodesStub(self._channel)

    def close(self):
        self._channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def submit(self, spec, request_id=None):
        """Submits a job; the job, as a dict. `spec`: a dict with the fields of `JobSpec` in proto/spec.proto, in protobuf's
        JSON. A retry with the same `request_id` gives the same job."""
        request = jobs_pb2.SubmitRequest(request_id=request_id or uuid.uuid4().hex)
        try:
            json_format.ParseDict(spec, request.spec)
        except json_format.ParseError as error:
            raise Error("INVALID_ARGUMENT", f"this is not a JobSpec: {error}") from error
        return _to_dict(self._call(self._jobs.Submit, request).job)

    def run(self, command, *, ranks=1, name=None, workdir=None, env=None, image=None, **spec):
        """Submits an exec job, as `muster run`; the job, as a dict. `command`: a list; its program is looked up in PATH
        here, or in `image`, a container image, if there is one. `env`: a dict. Others are fields of JobSpec: `max_restarts=5`, `labels={...}`."""
        if isinstance(command, str) or not command:
            raise Error("INVALID_ARGUMENT", "command must be a list: the program and its arguments")
        command = [str(part) for part in command]
        if name is None:
            script = next((part for part in command if part.endswith(".py")), command[0])
            name = re.sub(r"[^a-z0-9]+", "-", os.path.basename(script).removesuffix(".py").lower()).strip("-")[:40]
            name = name.strip("-") or "job"
        if "/" not in command[0] and not image:
            command[0] = shutil.which(command[0]) or command[0]
        resources = dict(spec.pop("resources", {}), ranks=ranks)
        return self.submit(dict(spec, name=name, resources=resources,
                                env=[{"name": key, "value": value} for key, value in (env or {}).items()],
                                exec={"command": command, "workdir": os.path.abspath(workdir or os.getcwd()),
                                      "image": image or ""}))

    def get(self, job):
        """The job with its newest generations: {"job": ..., "generations": [...], "last_metrics": ...}. `job` is an id, or
        a unique prefix of one, here and below."""
        return _to_dict(self._call(self._jobs.Get, jobs_pb2.GetJobRequest(job=job)))

    def list(self, all=False):
        """Jobs as dicts, running ones first; `all`: also ended ones."""
        request, jobs = jobs_pb2.ListJobsRequest(all=all), []
        while True:
            page = self._call(self._jobs.List, request)
            jobs += [_to_dict(summary.job) for summary in page.jobs]
            request.page = page.next_page
            if not request.page:
                return jobs

    def nodes(self):
        return [_to_dict(node) for node in self._call(self._nodes.List, jobs_pb2.ListNodesRequest()).nodes]

    def cancel(self, job):
        return _to_dict(self._call(self._jobs.Cancel, jobs_pb2.CancelRequest(job=job)).job)

    def pause(self, job):
        return _to_dict(self._call(self._jobs.Pause, jobs_pb2.PauseRequest(job=job)).job)

    def resume(self, job):
        return _to_dict(self._call(self._jobs.Resume, jobs_pb2.ResumeRequest(job=job)).job)

    def watch(self, job="", *, events=False, metrics=False, logs=False, follow=True, cursor="", tail=None, rank=None):
        """Yields what happens, as dicts with one of `event`, `metrics`, `log`, `gap`, `snapshot`, until the job has ended;
        without a job, of all jobs and nodes. None of `events`, `metrics`, `logs`: all of them. Goes on by itself after a
        restart of the coordinator; raises after five minutes without it, and without `follow` after seconds."""
        request = jobs_pb2.WatchRequest(job=job, cursor=cursor, follow=follow, events=events, metrics=metrics, logs=logs)
        if tail is not None:
            request.tail = tail
        if rank is not None:
            request.rank = rank
        failures, contact = 0, time.monotonic()
        while True:
            began = time.monotonic()
            try:
                for item in self._jobs.Watch(request, metadata=self._metadata):
                    failures = 0
                    if item.cursor:
                        request.cursor = item.cursor
                        request.ClearField("tail")
                    yield _to_dict(item)
                return
            except grpc.RpcError as error:
                now = time.monotonic()
                if failures == 0 or now - began > _CONTACT:
                    failures, contact = 0, now
                failures += 1
                if error.code() != grpc.StatusCode.UNAVAILABLE or now - contact > (_PATIENCE if follow else 10):
                    raise self._error(error) from None
                time.sleep(min(0.2 * 2 ** min(failures, 4), 2))

    def wait(self, job):
        """Waits until the job has ended; its state: "JOB_STATE_COMPLETED", "JOB_STATE_FAILED" or
        "JOB_STATE_CANCELLED". Raises after five minutes without the coordinator."""
        while True:
            for _ in self.watch(job, events=True):
                pass
            reply = self._call(self._jobs.Get, jobs_pb2.GetJobRequest(job=job), patience=_PATIENCE)
            state = _to_dict(reply)["job"]["state"]
            if state in _ENDED:
                return state
            time.sleep(1)

    def metrics(self, job):
        """The job's metrics by step, as dicts: {"step": 10, "time": ..., "loss": 2.3, "accuracy": 0.4}. Of a step that was
        repeated after a restart, the newest."""
        points = {}
        for item in self.watch(job, metrics=True, follow=False):
            if "metrics" not in item:
                continue
            point = {key: value for key, value in item["metrics"].items() if not isinstance(value, (dict, list))}
            for named in item["metrics"]["reported"] + item["metrics"]["validation"]:
                point[named["name"]] = named["value"]
            points.setdefault(point["step"], {}).update(point)
        return [points[step] for step in sorted(points)]

    def metrics_frame(self, job):
        """`metrics` as a pandas DataFrame, by step."""
        import pandas
        points = self.metrics(job)
        if not points:
            return pandas.DataFrame(index=pandas.Index([], name="step"))
        return pandas.DataFrame(points).set_index("step")

    def _call(self, method, request, patience=3):
        # All calls may be retried: a submit has its request id.
        began, pause = time.monotonic(), 0.2
        while True:
            try:
                return method(request, metadata=self._metadata, timeout=self._timeout)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() - began > patience:
                    raise self._error(error) from None
                time.sleep(pause)
                pause = min(2 * pause, 2)

    def _error(self, error):
        details = [value for key, value in error.trailing_metadata() or () if key == "grpc-status-details-bin"]
        spec_errors = []
        for value in details:
            try:
                spec_errors = [_to_dict(e) for e in jobs_pb2.SpecErrors.FromString(value).errors]
            except Exception:  # other details
                pass
        message = error.details() or ""
        if error.code() == grpc.StatusCode.UNAVAILABLE:
            message = f"cannot reach the coordinator at {self.address}: {message}"
        return Error(error.code().name, message, spec_errors)
