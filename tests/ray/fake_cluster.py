"""A cluster in this process: its actors are threads, and die when and how a test says."""

import pickle
import threading
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from dataflow.ray.actor import WorkerActor
from dataflow.system.worker_errors import LostWorker


@dataclass
class Fate:
    """What becomes of one actor.

    Attributes:
        dies_after: So many replies; with the next one it is dead.
        silent_after: So many replies; it is out of reach from the next one on, and alive until it is killed.
        loses: The number of the reply that is made, and lost on its way.
        starts: Whether there is room for it.
    """

    dies_after: int | None = None
    silent_after: int | None = None
    loses: int | None = None
    starts: bool = True


class FakeWorkerActor(WorkerActor):
    def prepare(self, spec):
        return replace(spec, reseed=False, threads=None)  # the process is the test's


class FakeActor:
    here = threading.local()  # its `actor` is that of this thread

    def __init__(self, cluster, number, fate):
        self.cluster = cluster
        self.number = number
        self.fate = fate
        self.worker = FakeWorkerActor()
        self.replies = 0  # made
        self.pending = 0  # replies that are asked for and not fetched
        self.killed = False
        self.loss = None  # makes the error of all calls that have no answer, once it has ended
        self.lock = threading.Lock()  # a call is answered by its end, or comes after it
        self.answers = threading.Event()  # cleared while nothing but the work can run in it
        self.answers.set()
        self.references = []
        self.queues = {
            name: ThreadPoolExecutor(1, f"dataflow-fake-{number}-{name}") for name in ("work", "reply", "other")
        }

    def run(self, reference, method, packed):
        args = pickle.loads(packed)
        FakeActor.here.actor = self
        try:
            result = getattr(self.worker, method)(*args)
            if method != "work":
                self.answers.wait()
        except BaseException as error:
            self.answer(reference, error=LostWorker(f"it raised {error!r}"))
            return
        if method != "reply":
            self.answer(reference, pickle.dumps(result))
            return
        self.replies += 1
        fate = self.fate
        if fate.dies_after is not None and self.replies > fate.dies_after:
            self.end("the process was killed")
        elif fate.silent_after is not None and self.replies > fate.silent_after:
            self.answer(reference, error=LostWorker("it is unavailable"))
        elif fate.loses == self.replies:
            self.answer(reference, error=LostWorker("the object was lost"))
        else:
            buffers = []
            body = pickle.dumps(result, 5, buffer_callback=buffers.append)
            self.answer(reference, (body, [bytes(buffer.raw()) for buffer in buffers]))  # read-only, as from a store

    def answer(self, reference, value=None, *, error=None):
        with suppress(InvalidStateError):  # it was killed meanwhile
            reference.set_result(value) if error is None else reference.set_exception(error)

    @property
    def dead(self):
        return self.loss is not None

    def end(self, reason, *, has_died=False):
        with self.lock:
            if self.dead:
                return
            self.loss = partial(LostWorker, reason, has_died=has_died)
        self.answers.set()
        for reference in self.references:
            self.answer(reference, error=self.loss())
        self.queues["work"].shutdown(wait=False)
        self.queues["reply"].shutdown(wait=False, cancel_futures=True)
        self.queues["other"].shutdown(wait=False, cancel_futures=True)
        if self.fate.starts:  # a thread cannot be killed
            threading.Thread(target=self.put_to_rest, name="dataflow-fake-end", daemon=True).start()

    def put_to_rest(self):
        self.worker.stop()  # as soon as the work has begun
        self.worker._spec.port.close()


class FakeCluster:
    """Actors get their fates in the order in which they are started; without one, they live."""

    def __init__(self, *fates):
        self.fates = list(fates)
        self.actors = []
        self.options = []
        self.max_pending = 0  # replies asked for and not fetched, of one actor
        self.is_down = False
        self.lock = threading.Lock()
        self.gate = threading.Event()  # opened at the end of a test: what hangs ends then

    def start(self, options):
        number = len(self.actors)
        actor = FakeActor(self, number, self.fates[number] if number < len(self.fates) else Fate())
        self.actors.append(actor)
        self.options.append(options)
        return actor

    def call(self, actor, method, *args):
        self.check()
        reference = Future()
        reference.set_running_or_notify_cancel()
        reference.actor, reference.method = actor, method
        packed = pickle.dumps(args)
        if method == "reply":
            actor.pending += 1
            self.max_pending = max(self.max_pending, actor.pending)
        with actor.lock:
            if actor.dead:
                reference.set_exception(actor.loss())
                return reference
            actor.references.append(reference)
            if actor.fate.starts:
                actor.queues[method if method in actor.queues else "other"].submit(actor.run, reference, method, packed)
        return reference

    def wait(self, references, timeout, *, all_ready=False):
        self.check()
        done = wait(references, timeout, FIRST_COMPLETED).done
        ready = [reference for reference in references if reference in done]
        return ready if all_ready else ready[:1]

    def get(self, reference):
        self.check()
        if reference.method == "reply":
            reference.actor.pending -= 1
        value = reference.result(0)
        if reference.method != "reply":
            return pickle.loads(value)
        body, buffers = value
        return pickle.loads(body, buffers=buffers)

    def kill(self, actor):
        actor.killed = True
        actor.end("it was killed")

    def free(self):
        return {"CPU": 0.5}

    def check(self):
        if self.is_down:
            raise LostWorker("the cluster was shut down")
