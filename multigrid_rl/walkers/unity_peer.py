"""Messages between Unity and its trainer: ML-Agents' communication 1.5.0, over gRPC.

The trainer is the server and Unity calls its only method, ``Exchange``, with its agents' observations; the answer has
their actions. Messages are described here by the numbers and types of their fields, as far as they are used:
ML-Agents' Python package cannot be imported together with this version of protobuf.
"""

import atexit
import logging
import queue
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from multigrid_rl.text import expected, shown
from multigrid_rl.types import RunError

LOG = logging.getLogger(__name__)
VERSION = "1.5.0"
#: Since this minor version, each kind of actions has a separate field.
_OLDEST = (1, 3)
_OK, _OVER = 200, 400
STEP, RESET, QUIT = 0, 1, 2
_PACKAGE, _SERVICE = "communicator_objects", "communicator_objects.UnityToExternalProto"
#: Seconds between checks that the started program, or the caller, is still there.
_POLL_S = 0.5
_ENGINE = uuid.UUID("e951342c-4f7e-11ea-b238-784f4387d1f7")
_PARAMETERS = uuid.UUID("534c891e-810f-11ea-a9d0-822485860400")
#: Settings of the engine by name, with number and format. Width and height are one setting.
ENGINE = {
    "quality_level": (1, "i"),
    "time_scale": (2, "f"),
    "target_frame_rate": (3, "i"),
    "capture_frame_rate": (4, "i"),
}

#: Message -> "type name number" of each field; [] repeats, {} is a map of names to the type. Enumerations are numbers.
_FIELDS = {
    "Header": "int32 status 1, string message 2",
    "FloatData": "float[] data 1",
    "Observation": "int32[] shape 1, int32 compression_type 2, bytes compressed_data 3, FloatData float_data 4,"
    " string name 8",
    "AgentInfo": "float reward 7, bool done 8, bool max_step_reached 9, int32 id 10, Observation[] observations 13,"
    " float group_reward 15",
    "AgentAction": "float[] continuous_actions 6, int32[] discrete_actions 7",
    "ActionSpec": "int32 num_continuous_actions 1, int32 num_discrete_actions 2, int32[] discrete_branch_sizes 3",
    "BrainParameters": "string brain_name 7, ActionSpec action_spec 9",
    "Capabilities": "bool baseRLCapabilities 1, bool concatenatedPngObservations 2, bool compressedChannelMapping 3,"
    " bool hybridActions 4, bool trainingAnalytics 5, bool variableLengthObservation 6, bool multiAgentGroups 7",
    "InitialInput": "int32 seed 1, string communication_version 2, string package_version 3,"
    " Capabilities capabilities 4, int32 num_areas 5",
    "InitialOutput": "string name 1, string communication_version 2, BrainParameters[] brain_parameters 5,"
    " string package_version 7, Capabilities capabilities 8",
    "AgentActions": "AgentAction[] value 1",
    "AgentInfos": "AgentInfo[] value 1",
    "Input": "AgentActions{} agent_actions 1, int32 command 4, bytes side_channel 5",
    "Output": "AgentInfos{} agentInfos 2, bytes side_channel 3",
    "UnityInput": "Input rl_input 1, InitialInput rl_initialization_input 2",
    "UnityOutput": "Output rl_output 1, InitialOutput rl_initialization_output 2",
    "UnityMessage": "Header header 1, UnityOutput unity_output 2, UnityInput unity_input 3",
}
_SCALARS = ("int32", "string", "float", "bool", "bytes")


def _messages() -> dict[str, Any]:
    """Build the classes of all messages, by name."""
    file = descriptor_pb2.FileDescriptorProto(name="multigrid_rl/unity.proto", package=_PACKAGE, syntax="proto3")
    kinds = {name: getattr(descriptor_pb2.FieldDescriptorProto, "TYPE_" + name.upper()) for name in _SCALARS}
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for text in fields.split(", "):
            kind, field_name, number = text.split()
            _add_field(message, kind, field_name, int(number), kinds)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    find = pool.FindMessageTypeByName
    return {name: message_factory.GetMessageClass(find(f"{_PACKAGE}.{name}")) for name in _FIELDS}


def _add_field(message: Any, kind: str, name: str, number: int, kinds: Mapping[str, int]) -> None:
    base, repeated = kind.rstrip("[]{}"), kind.endswith(("[]", "{}"))
    if kind.endswith("{}"):  # a map is a repeated message of key and value, by its definition
        entry = message.nested_type.add(name=f"{name[0].upper()}{name[1:]}Entry".replace("_a", "A"))
        entry.options.map_entry = True
        _add_field(entry, "string", "key", 1, kinds)
        _add_field(entry, base, "value", 2, kinds)
        base = f"{message.name}.{entry.name}"
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
    if base in kinds:
        field.type = kinds[base]
    else:
        field.type, field.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{base}"


#: Classes of all messages, by name: one set, as protobuf does not mix two.
MESSAGES = _messages()


def side_channels(engine: Mapping[str, float], parameters: Mapping[str, float]) -> bytes:
    """Return the side channels with settings of the engine and the environment's float parameters."""
    sent = [(_ENGINE, struct.pack("<iii", 0, int(engine["width"]), int(engine["height"])))] if "width" in engine else []
    for name, (number, kind) in ENGINE.items():
        if name in engine:
            value = engine[name] if kind == "f" else int(engine[name])
            sent.append((_ENGINE, struct.pack(f"<i{kind}", number, value)))
    for name, value in parameters.items():
        key = name.encode("ascii")
        sent.append((_PARAMETERS, struct.pack("<i", len(key)) + key + struct.pack("<if", 0, value)))
    return b"".join(channel.bytes_le + struct.pack("<i", len(data)) + data for channel, data in sent)


class _PeerThreads(ThreadPoolExecutor):
    """Serves each call in a daemon thread: at exit Python joins the threads of a pool first, then calls ``atexit``.

    A thread of the pool waits for an answer until :meth:`UnityPeer.close`, which ``atexit`` calls: neither would end.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call ``fn`` in a thread of its own; gRPC reads no result."""
        future: Future[Any] = Future()

        def serve() -> None:
            try:
                fn(*args, **kwargs)
            finally:
                future.set_result(None)

        threading.Thread(target=serve, name="unity", daemon=True).start()
        return future


class UnityPeer:
    """A Unity environment that has called on a port of this machine.

    Args:
        port: port to listen on.
        command: program to start, without ``--mlagents-port``; empty: the user presses Play in the editor.
        timeout_s: time limit of each answer in seconds.
        areas: requested copies of the training area.

    Raises:
        RunError: the port is taken, the program cannot be started, no program connects, or its version is another.
    """

    def __init__(
        self, port: int, command: list[str], *, timeout_s: float = 60.0, seed: int = 0, areas: int = 1
    ) -> None:
        self.where = f"Unity on port {port}"
        self.closed = False
        self._timeout_s = timeout_s
        self._inbox: queue.Queue[Any] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        self._message = MESSAGES["UnityMessage"]
        self._program: subprocess.Popen[bytes] | None = None
        handler = grpc.unary_unary_rpc_method_handler(
            self._exchange, self._message.FromString, self._message.SerializeToString
        )
        options = [("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
        self._server = grpc.server(_PeerThreads(), options=options)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Exchange": handler}),))
        try:
            self._server.add_insecure_port(f"localhost:{port}")
        except RuntimeError as error:
            raise RunError(expected("port", "a free one", port)) from error
        self._server.start()
        atexit.register(self.close)
        try:
            if command:
                self._program = _start_program([*command, "--mlagents-port", str(port)])
            else:
                LOG.warning("listening on port %s: press Play in the Unity editor", port)
            self.first = self._handshake(seed, areas)
        except RunError:
            self.close()
            raise

    def _exchange(self, request: Any, context: Any) -> Any:
        """Queue a call and wait for its answer; a caller that is gone gets none, which leaves it to the next one."""
        self._inbox.put(request)
        while context.is_active() and not self.closed:
            with suppress(queue.Empty):
                return self._answers.get(timeout=_POLL_S)
        return self._message(header={"status": _OVER})

    def _receive(self) -> Any:
        """Return Unity's next message. Raises ``RunError``: none in time, or Unity ends."""
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            with suppress(queue.Empty):
                message = self._inbox.get(timeout=min(_POLL_S, self._timeout_s))
                if message.header.status != _OK:
                    raise RunError(
                        expected(self.where, "an answer", f"its end: {shown(message.header.message) or 'quit'}")
                    )
                return message.unity_output
            if self._program is not None and self._program.poll() is not None:
                raise RunError(
                    expected(self.where, "an answer", f"the program's end, status {self._program.returncode}")
                )
        raise RunError(expected(self.where, f"an answer within {self._timeout_s:g} s", "none"))

    def _answer(self, status: int = _OK, **parts: Any) -> None:
        answer = self._message(header={"status": status})
        for name, part in parts.items():
            getattr(answer.unity_input, name).CopyFrom(part)
        self._answers.put(answer)

    def _handshake(self, seed: int, areas: int) -> Any:
        """Exchange versions; returns Unity's first message."""
        first, kinds = self._receive(), MESSAGES
        version = first.rl_initialization_output.communication_version
        digits = version.split(".")
        if not all(part.isdecimal() for part in digits) or not _OLDEST <= tuple(map(int, digits)) < (2,):
            raise RunError(expected(self.where, "communication 1.3 or later, below 2", shown(version) or "none"))
        able = {field.name: True for field in kinds["Capabilities"].DESCRIPTOR.fields}
        initial = kinds["InitialInput"](
            seed=seed, communication_version=VERSION, package_version="0.28.0", capabilities=able, num_areas=areas
        )
        self._answer(rl_initialization_input=initial)
        self._receive()  # a call that waits for the first command
        return first

    def exchange(self, command: int, actions: Mapping[str, Any] | None = None, side_channel: bytes = b"") -> Any:
        """Send a command to Unity and return its agents' observations.

        Raises ``RunError``: it does not answer; the connection is closed then.
        """
        request = MESSAGES["Input"](command=command, side_channel=side_channel)
        for name, rows in (actions or {}).items():
            request.agent_actions[name].value.extend(rows)
        self._answer(rl_input=request)
        try:
            return self._receive()
        except RunError:
            self.close()
            raise

    def close(self) -> None:
        """Quit Unity and the started program; further calls do nothing."""
        if self.closed:
            return
        self.closed = True
        atexit.unregister(self.close)
        self._answer(_OVER, rl_input=MESSAGES["Input"](command=QUIT))
        self._server.stop(grace=1).wait(5)
        if self._program is not None:
            try:
                self._program.wait(10)
            except subprocess.TimeoutExpired:
                self._program.kill()
                self._program.wait()


def _start_program(command: list[str]) -> subprocess.Popen[bytes]:
    try:
        null = subprocess.DEVNULL
        return subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)
    except OSError as error:
        raise RunError(expected("env_path", "a program", f"{command[0]}: {error.strerror}")) from error
