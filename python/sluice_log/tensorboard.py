"""TensorBoard's event files: DIR against steps, DIR/by_tokens against tokens.

Steps that are trained again replace the earlier ones. An event that starts a session makes
TensorBoard drop everything from its step on, as with torch's SummaryWriter(purge_step=).
"""

import os
import socket
import time

from .outputs import Output, missing
from .records import BY_TOKENS, plain_text

STRING = 7  # a data type of TensorFlow
END = {"completed": 1, "interrupted": 3}  # of the HParams plugin: success, running; else failure
MOST_WARNINGS = 1000


class TensorBoard(Output):
    kind = "TensorBoard"
    files = ("events.out.tfevents.*",)

    def __init__(self, folder):
        super().__init__(folder)
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2
            from tensorboard.compat.proto import tensor_shape_pb2
            from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise missing(self.kind, "tensorboard", error) from error
        self._event, self._summary, self._tensor = event_pb2, summary_pb2, tensor_pb2
        self._shape, self._api, self._plugin = tensor_shape_pb2, api_pb2, plugin_data_pb2
        self._record_writer = RecordWriter
        self._files = {}

    def _begin(self, parameters):
        self.state["tokens"] = 0
        self._start(0, 0)
        self._put_parameters(parameters)
        self._flush()

    def _resume(self):
        self.close_files()
        self._start(0 if self.step is None else self.step + 1, self.state.get("tokens", 0) + 1)
        self._flush()
        return True

    def _rewind(self, step):
        self._start(step, None)

    def _write(self, records):
        first_tokens = next(
            (record.tokens for record in records if record.tokens is not None), None)
        if first_tokens is not None and first_tokens <= self.state.get("tokens", 0):
            self._start(None, first_tokens)
        for record in records:
            values = dict(record.values)
            if record.tokens is not None:
                values["progress/tokens"] = float(record.tokens)
            self._put("", record.step, record.unix_s, values)
            if record.tokens is None:
                continue
            by_tokens = {f"by_tokens/{name}": values[name] for name in BY_TOKENS if name in values}
            self._put("by_tokens", record.tokens, record.unix_s, by_tokens)
            self.state["tokens"] = record.tokens
        self._flush()

    def _note(self, events):
        for event in events:
            step, time_s = event["step"], _seconds(event)
            if event["event"] == "checkpoint":
                self._put("", step, time_s, {
                    f"checkpoint/{key}": float(event[key])
                    for key in ("bytes", "stopped_s", "took_s")
                    if isinstance(event.get(key), (int, float))})
                if event.get("failed"):
                    self._put_text("events/checkpoint", step, time_s, event["failed"])
            elif event["event"] == "warning":
                self.state["warnings"] = self.state.get("warnings", 0) + 1
                if self.state["warnings"] <= MOST_WARNINGS:
                    self._put_text("events/warning", step, time_s, event.get("text", ""))
            elif event["event"] == "end":
                how = f"{event.get('how', '')} {event.get('reason', '')}".strip()
                self._put_text("events/end", step, time_s, how)
        self._flush()

    def _end(self, how, reason):
        content = self._plugin.HParamsPluginData(version=0)
        content.session_end_info.status = END.get(how, 2)
        content.session_end_info.end_time_secs = time.time()
        self._put_plugin("_hparams_/session_end_info", content)
        self._flush()

    def _close(self):
        self.close_files()

    # ---- events

    def _put(self, where, step, unix_s, values):
        if not values:
            return
        summary = self._summary.Summary(value=[
            self._summary.Summary.Value(tag=name, simple_value=_fitting(value))
            for name, value in values.items()])
        self._add(where, self._event.Event(step=step, summary=summary), unix_s)

    def _put_text(self, tag, step, unix_s, text):
        value = self._summary.Summary.Value(tag=tag, tensor=self._tensor.TensorProto(
            dtype=STRING, string_val=[plain_text(text).encode("utf-8")],
            tensor_shape=self._shape.TensorShapeProto(
                dim=[self._shape.TensorShapeProto.Dim(size=1)])))
        value.metadata.plugin_data.plugin_name = "text"
        self._add("", self._event.Event(step=step, summary=self._summary.Summary(value=[value])),
                  unix_s)

    def _put_parameters(self, parameters):
        start = self._plugin.HParamsPluginData(version=0)
        start.session_start_info.start_time_secs = time.time()
        infos = []
        for key, value in parameters.items():
            slot = start.session_start_info.hparams[key]
            info = self._api.HParamInfo(name=key)
            if isinstance(value, bool):
                slot.bool_value, info.type = value, self._api.DATA_TYPE_BOOL
            elif isinstance(value, (int, float)):
                slot.number_value, info.type = value, self._api.DATA_TYPE_FLOAT64
            else:
                slot.string_value, info.type = value, self._api.DATA_TYPE_STRING
            infos.append(info)
        metrics = [self._api.MetricInfo(name=self._api.MetricName(tag=tag))
                   for tag in ("train/loss", "validation/loss", "speed/tokens_per_second")]
        experiment = self._plugin.HParamsPluginData(
            version=0, experiment=self._api.Experiment(hparam_infos=infos, metric_infos=metrics))
        self._put_plugin("_hparams_/experiment", experiment)
        self._put_plugin("_hparams_/session_start_info", start)
        text = "\n".join(f"{key}: {value}" for key, value in parameters.items())
        for part in range(0, len(text), 60_000):
            self._put_text("configuration", part // 60_000, None, text[part:part + 60_000])

    def _put_plugin(self, tag, content):
        value = self._summary.Summary.Value(tag=tag)
        value.metadata.plugin_data.plugin_name = "hparams"
        value.metadata.plugin_data.content = content.SerializeToString()
        value.tensor.CopyFrom(self._tensor.TensorProto(dtype=1, tensor_shape=self._shape.
                                                       TensorShapeProto()))
        value.tensor.float_val.append(0)
        self._add("", self._event.Event(step=0, summary=self._summary.Summary(value=[value])), None)

    def _start(self, step, tokens):
        """Starts a session: everything from this step on is new, or replaced."""
        for where, begin in (("", step), ("by_tokens", tokens)):
            if begin is not None:
                session = self._event.SessionLog(status=self._event.SessionLog.START)
                self._add(where, self._event.Event(step=begin, session_log=session), None)

    # ---- files

    def _add(self, where, event, unix_s):
        event.wall_time = time.time() if unix_s is None else unix_s
        if where not in self._files:
            self._files[where] = self._new_file(self.folder / where)
        self._files[where][1].write(event.SerializeToString())

    def _new_file(self, folder):
        """Opens a file. TensorBoard reads files in the order of their names, which contain the
        time."""
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            now = int(time.time())
            if not any(folder.glob(f"events.out.tfevents.{now:010}.*")):
                break
            time.sleep(0.05)
        path = folder / f"events.out.tfevents.{now:010}.{socket.gethostname()}.{os.getpid()}.sluice"
        file = open(path, "xb")
        writer = self._record_writer(file)
        version = self._event.Event(wall_time=now, file_version="brain.Event:2")
        writer.write(version.SerializeToString())
        return file, writer

    def _flush(self):
        for file, _ in self._files.values():
            file.flush()
            os.fsync(file.fileno())

    def close_files(self):
        for file, _ in self._files.values():
            file.close()
        self._files = {}


def _seconds(event):
    time_s = event.get("unix_s")
    return float(time_s) if isinstance(time_s, (int, float)) and 0 <= time_s < 1e12 else None


def _fitting(value):
    """The value within the range of a 32-bit float: protobuf refuses larger ones."""
    if abs(value) > 3.4028234e38 and value == value and abs(value) != float("inf"):
        return float("inf") if value > 0 else float("-inf")
    return value
