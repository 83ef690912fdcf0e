from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Wanted(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN: _ClassVar[Wanted]
    TRAINED: _ClassVar[Wanted]
    COMMITTED: _ClassVar[Wanted]
    PROBE: _ClassVar[Wanted]
UNKNOWN: Wanted
TRAINED: Wanted
COMMITTED: Wanted
PROBE: Wanted

class Envelope(_message.Message):
    __slots__ = ("version", "run", "epoch", "round", "attempt", "sender", "incarnation", "sequence", "token")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    version: int
    run: str
    epoch: int
    round: int
    attempt: int
    sender: str
    incarnation: int
    sequence: int
    token: bytes
    def __init__(self, version: _Optional[int] = ..., run: _Optional[str] = ..., epoch: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., sender: _Optional[str] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class Leadership(_message.Message):
    __slots__ = ("epoch", "token", "start")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    token: bytes
    start: Stand
    def __init__(self, epoch: _Optional[int] = ..., token: _Optional[bytes] = ..., start: _Optional[_Union[Stand, _Mapping]] = ...) -> None: ...

class Stand(_message.Message):
    __slots__ = ("round", "epoch", "attempt")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    round: int
    epoch: int
    attempt: int
    def __init__(self, round: _Optional[int] = ..., epoch: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("envelope", "address", "fedhp", "samples", "step_time", "stands", "nonce", "setup")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FEDHP_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_FIELD_NUMBER: _ClassVar[int]
    STANDS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    SETUP_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    address: str
    fedhp: str
    samples: int
    step_time: float
    stands: _containers.RepeatedCompositeFieldContainer[Stand]
    nonce: bytes
    setup: Setup
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., address: _Optional[str] = ..., fedhp: _Optional[str] = ..., samples: _Optional[int] = ..., step_time: _Optional[float] = ..., stands: _Optional[_Iterable[_Union[Stand, _Mapping]]] = ..., nonce: _Optional[bytes] = ..., setup: _Optional[_Union[Setup, _Mapping]] = ...) -> None: ...

class Setup(_message.Message):
    __slots__ = ("parts", "private_data", "mean", "deviation")
    PARTS_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_DATA_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    DEVIATION_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[SetupPart]
    private_data: bool
    mean: _containers.RepeatedScalarFieldContainer[float]
    deviation: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, parts: _Optional[_Iterable[_Union[SetupPart, _Mapping]]] = ..., private_data: bool = ..., mean: _Optional[_Iterable[float]] = ..., deviation: _Optional[_Iterable[float]] = ...) -> None: ...

class SetupPart(_message.Message):
    __slots__ = ("name", "digest", "facts", "sketch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    SKETCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: bytes
    facts: str
    sketch: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[bytes] = ..., facts: _Optional[str] = ..., sketch: _Optional[_Iterable[float]] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("run", "epoch", "worker", "experiment", "beat_seconds", "leaders", "committed", "key", "proof")
    RUN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    BEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    run: str
    epoch: int
    worker: int
    experiment: str
    beat_seconds: float
    leaders: _containers.RepeatedCompositeFieldContainer[Leadership]
    committed: Stand
    key: bytes
    proof: bytes
    def __init__(self, run: _Optional[str] = ..., epoch: _Optional[int] = ..., worker: _Optional[int] = ..., experiment: _Optional[str] = ..., beat_seconds: _Optional[float] = ..., leaders: _Optional[_Iterable[_Union[Leadership, _Mapping]]] = ..., committed: _Optional[_Union[Stand, _Mapping]] = ..., key: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class NextRequest(_message.Message):
    __slots__ = ("envelope", "stands", "step_time", "model_bytes", "samples", "surveyed", "report", "setup")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    STANDS_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_FIELD_NUMBER: _ClassVar[int]
    MODEL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SURVEYED_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    SETUP_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    stands: _containers.RepeatedCompositeFieldContainer[Stand]
    step_time: float
    model_bytes: int
    samples: int
    surveyed: _containers.RepeatedCompositeFieldContainer[LinkReport]
    report: RoundReport
    setup: Setup
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., stands: _Optional[_Iterable[_Union[Stand, _Mapping]]] = ..., step_time: _Optional[float] = ..., model_bytes: _Optional[int] = ..., samples: _Optional[int] = ..., surveyed: _Optional[_Iterable[_Union[LinkReport, _Mapping]]] = ..., report: _Optional[_Union[RoundReport, _Mapping]] = ..., setup: _Optional[_Union[Setup, _Mapping]] = ...) -> None: ...

class PeerAddress(_message.Message):
    __slots__ = ("worker", "name", "address", "ticket")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    worker: int
    name: str
    address: str
    ticket: bytes
    def __init__(self, worker: _Optional[int] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., ticket: _Optional[bytes] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("epoch", "committed", "wait", "work", "act", "catch_up", "finished", "survey", "token", "receipt", "own", "keep")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    ACT_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    SURVEY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    committed: Stand
    wait: Wait
    work: Work
    act: Act
    catch_up: CatchUp
    finished: Finished
    survey: Survey
    token: bytes
    receipt: Receipt
    own: Stand
    keep: _containers.RepeatedCompositeFieldContainer[Stand]
    def __init__(self, epoch: _Optional[int] = ..., committed: _Optional[_Union[Stand, _Mapping]] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ..., work: _Optional[_Union[Work, _Mapping]] = ..., act: _Optional[_Union[Act, _Mapping]] = ..., catch_up: _Optional[_Union[CatchUp, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., survey: _Optional[_Union[Survey, _Mapping]] = ..., token: _Optional[bytes] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., own: _Optional[_Union[Stand, _Mapping]] = ..., keep: _Optional[_Iterable[_Union[Stand, _Mapping]]] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("why", "removed")
    WHY_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    why: str
    removed: bool
    def __init__(self, why: _Optional[str] = ..., removed: bool = ...) -> None: ...

class CatchUp(_message.Message):
    __slots__ = ("peers", "digests", "compare")
    PEERS_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    COMPARE_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[PeerAddress]
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    compare: int
    def __init__(self, peers: _Optional[_Iterable[_Union[PeerAddress, _Mapping]]] = ..., digests: _Optional[_Iterable[bytes]] = ..., compare: _Optional[int] = ...) -> None: ...

class Survey(_message.Message):
    __slots__ = ("peers", "deadline")
    PEERS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[PeerAddress]
    deadline: float
    def __init__(self, peers: _Optional[_Iterable[_Union[PeerAddress, _Mapping]]] = ..., deadline: _Optional[float] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("round", "attempt", "local_steps", "learning_rate", "estimate", "evaluate", "whole_test", "peers", "weights", "own_weight", "readers", "probes", "keep", "samples", "deadline", "exchange_deadline", "push_sum", "group", "exchanges")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    WHOLE_TEST_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    OWN_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    PUSH_SUM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EXCHANGES_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    local_steps: int
    learning_rate: float
    estimate: bool
    evaluate: bool
    whole_test: bool
    peers: _containers.RepeatedCompositeFieldContainer[PeerAddress]
    weights: _containers.RepeatedScalarFieldContainer[float]
    own_weight: float
    readers: _containers.RepeatedCompositeFieldContainer[PeerAddress]
    probes: _containers.RepeatedCompositeFieldContainer[PeerAddress]
    keep: int
    samples: int
    deadline: float
    exchange_deadline: float
    push_sum: bool
    group: GroupWork
    exchanges: _containers.RepeatedCompositeFieldContainer[MixWork]
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., local_steps: _Optional[int] = ..., learning_rate: _Optional[float] = ..., estimate: bool = ..., evaluate: bool = ..., whole_test: bool = ..., peers: _Optional[_Iterable[_Union[PeerAddress, _Mapping]]] = ..., weights: _Optional[_Iterable[float]] = ..., own_weight: _Optional[float] = ..., readers: _Optional[_Iterable[_Union[PeerAddress, _Mapping]]] = ..., probes: _Optional[_Iterable[_Union[PeerAddress, _Mapping]]] = ..., keep: _Optional[int] = ..., samples: _Optional[int] = ..., deadline: _Optional[float] = ..., exchange_deadline: _Optional[float] = ..., push_sum: bool = ..., group: _Optional[_Union[GroupWork, _Mapping]] = ..., exchanges: _Optional[_Iterable[_Union[MixWork, _Mapping]]] = ...) -> None: ...

class MixWork(_message.Message):
    __slots__ = ("peers", "weights", "own_weight", "readers", "times")
    PEERS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    OWN_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedScalarFieldContainer[float]
    own_weight: float
    readers: _containers.RepeatedScalarFieldContainer[int]
    times: int
    def __init__(self, peers: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[float]] = ..., own_weight: _Optional[float] = ..., readers: _Optional[_Iterable[int]] = ..., times: _Optional[int] = ...) -> None: ...

class GroupWork(_message.Message):
    __slots__ = ("fragment", "fragments", "momentum", "compression", "members", "returning", "parent", "children", "returning_children", "transfer_time", "train_time", "overlap", "largest_sums", "largest_mean", "rate")
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    RETURNING_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    RETURNING_CHILDREN_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_TIME_FIELD_NUMBER: _ClassVar[int]
    TRAIN_TIME_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    LARGEST_SUMS_FIELD_NUMBER: _ClassVar[int]
    LARGEST_MEAN_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    fragment: int
    fragments: int
    momentum: float
    compression: str
    members: int
    returning: bool
    parent: PeerAddress
    children: _containers.RepeatedCompositeFieldContainer[PeerAddress]
    returning_children: _containers.RepeatedScalarFieldContainer[int]
    transfer_time: float
    train_time: float
    overlap: bool
    largest_sums: _containers.RepeatedScalarFieldContainer[float]
    largest_mean: float
    rate: float
    def __init__(self, fragment: _Optional[int] = ..., fragments: _Optional[int] = ..., momentum: _Optional[float] = ..., compression: _Optional[str] = ..., members: _Optional[int] = ..., returning: bool = ..., parent: _Optional[_Union[PeerAddress, _Mapping]] = ..., children: _Optional[_Iterable[_Union[PeerAddress, _Mapping]]] = ..., returning_children: _Optional[_Iterable[int]] = ..., transfer_time: _Optional[float] = ..., train_time: _Optional[float] = ..., overlap: bool = ..., largest_sums: _Optional[_Iterable[float]] = ..., largest_mean: _Optional[float] = ..., rate: _Optional[float] = ...) -> None: ...

class Act(_message.Message):
    __slots__ = ("round", "turn", "local_steps", "learning_rate", "partner", "evaluate", "deadline", "whole_test")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    PARTNER_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    WHOLE_TEST_FIELD_NUMBER: _ClassVar[int]
    round: int
    turn: int
    local_steps: int
    learning_rate: float
    partner: PeerAddress
    evaluate: bool
    deadline: float
    whole_test: bool
    def __init__(self, round: _Optional[int] = ..., turn: _Optional[int] = ..., local_steps: _Optional[int] = ..., learning_rate: _Optional[float] = ..., partner: _Optional[_Union[PeerAddress, _Mapping]] = ..., evaluate: bool = ..., deadline: _Optional[float] = ..., whole_test: bool = ...) -> None: ...

class LinkReport(_message.Message):
    __slots__ = ("worker", "bytes", "seconds", "distance", "probe", "lost", "started", "timed_bytes", "timed_seconds", "lost_at")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    TIMED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIMED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOST_AT_FIELD_NUMBER: _ClassVar[int]
    worker: int
    bytes: int
    seconds: float
    distance: float
    probe: bool
    lost: str
    started: float
    timed_bytes: int
    timed_seconds: float
    lost_at: int
    def __init__(self, worker: _Optional[int] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., distance: _Optional[float] = ..., probe: bool = ..., lost: _Optional[str] = ..., started: _Optional[float] = ..., timed_bytes: _Optional[int] = ..., timed_seconds: _Optional[float] = ..., lost_at: _Optional[int] = ...) -> None: ...

class RoundReport(_message.Message):
    __slots__ = ("envelope", "step_time", "compute_seconds", "exchange_seconds", "train_loss", "update_norm", "smoothness", "gradient_variance", "start_loss", "links", "selected", "accuracy", "whole_accuracy", "images", "digest", "turn", "other_seconds", "steps", "steps_during", "consensus", "failed", "change_norms", "result", "whole", "diverged", "measures")
    class MeasuresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRAIN_LOSS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_NORM_FIELD_NUMBER: _ClassVar[int]
    SMOOTHNESS_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_VARIANCE_FIELD_NUMBER: _ClassVar[int]
    START_LOSS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    WHOLE_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    OTHER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEPS_DURING_FIELD_NUMBER: _ClassVar[int]
    CONSENSUS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CHANGE_NORMS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_FIELD_NUMBER: _ClassVar[int]
    MEASURES_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    step_time: float
    compute_seconds: float
    exchange_seconds: float
    train_loss: float
    update_norm: float
    smoothness: float
    gradient_variance: float
    start_loss: float
    links: _containers.RepeatedCompositeFieldContainer[LinkReport]
    selected: _containers.RepeatedScalarFieldContainer[int]
    accuracy: float
    whole_accuracy: float
    images: int
    digest: bytes
    turn: int
    other_seconds: float
    steps: int
    steps_during: int
    consensus: bytes
    failed: str
    change_norms: _containers.RepeatedScalarFieldContainer[float]
    result: bytes
    whole: bytes
    diverged: bool
    measures: _containers.ScalarMap[str, float]
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., step_time: _Optional[float] = ..., compute_seconds: _Optional[float] = ..., exchange_seconds: _Optional[float] = ..., train_loss: _Optional[float] = ..., update_norm: _Optional[float] = ..., smoothness: _Optional[float] = ..., gradient_variance: _Optional[float] = ..., start_loss: _Optional[float] = ..., links: _Optional[_Iterable[_Union[LinkReport, _Mapping]]] = ..., selected: _Optional[_Iterable[int]] = ..., accuracy: _Optional[float] = ..., whole_accuracy: _Optional[float] = ..., images: _Optional[int] = ..., digest: _Optional[bytes] = ..., turn: _Optional[int] = ..., other_seconds: _Optional[float] = ..., steps: _Optional[int] = ..., steps_during: _Optional[int] = ..., consensus: _Optional[bytes] = ..., failed: _Optional[str] = ..., change_norms: _Optional[_Iterable[float]] = ..., result: _Optional[bytes] = ..., whole: _Optional[bytes] = ..., diverged: bool = ..., measures: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("accepted", "why")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    why: str
    def __init__(self, accepted: bool = ..., why: _Optional[str] = ...) -> None: ...

class BeatRequest(_message.Message):
    __slots__ = ("envelope", "phase", "dialed")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DIALED_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    phase: str
    dialed: _containers.RepeatedCompositeFieldContainer[DialResult]
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., phase: _Optional[str] = ..., dialed: _Optional[_Iterable[_Union[DialResult, _Mapping]]] = ...) -> None: ...

class BeatReply(_message.Message):
    __slots__ = ("epoch", "round", "attempt", "gone", "token", "leave", "barred", "readmitted", "dial", "pardoned")
    class ReadmittedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class PardonedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    BARRED_FIELD_NUMBER: _ClassVar[int]
    READMITTED_FIELD_NUMBER: _ClassVar[int]
    DIAL_FIELD_NUMBER: _ClassVar[int]
    PARDONED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    round: int
    attempt: int
    gone: _containers.RepeatedScalarFieldContainer[int]
    token: bytes
    leave: bool
    barred: _containers.RepeatedScalarFieldContainer[str]
    readmitted: _containers.ScalarMap[str, int]
    dial: _containers.RepeatedCompositeFieldContainer[DialTarget]
    pardoned: _containers.ScalarMap[str, int]
    def __init__(self, epoch: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., gone: _Optional[_Iterable[int]] = ..., token: _Optional[bytes] = ..., leave: bool = ..., barred: _Optional[_Iterable[str]] = ..., readmitted: _Optional[_Mapping[str, int]] = ..., dial: _Optional[_Iterable[_Union[DialTarget, _Mapping]]] = ..., pardoned: _Optional[_Mapping[str, int]] = ...) -> None: ...

class DialTarget(_message.Message):
    __slots__ = ("test", "name", "address")
    TEST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    test: int
    name: str
    address: str
    def __init__(self, test: _Optional[int] = ..., name: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class DialResult(_message.Message):
    __slots__ = ("test", "verdict", "why", "name")
    TEST_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    test: int
    verdict: str
    why: str
    name: str
    def __init__(self, test: _Optional[int] = ..., verdict: _Optional[str] = ..., why: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class DialBackRequest(_message.Message):
    __slots__ = ("envelope", "address")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    address: str
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., address: _Optional[str] = ...) -> None: ...

class DialBackReply(_message.Message):
    __slots__ = ("address", "results")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    address: str
    results: _containers.RepeatedCompositeFieldContainer[DialResult]
    def __init__(self, address: _Optional[str] = ..., results: _Optional[_Iterable[_Union[DialResult, _Mapping]]] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("envelope", "why", "finished")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    why: str
    finished: bool
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., why: _Optional[str] = ..., finished: bool = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("envelope",)
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ...) -> None: ...

class MemberStatus(_message.Message):
    __slots__ = ("worker", "name", "address", "status", "phase", "round", "silent_seconds", "step_time", "local_steps", "accuracy")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SILENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    worker: int
    name: str
    address: str
    status: str
    phase: str
    round: int
    silent_seconds: float
    step_time: float
    local_steps: int
    accuracy: float
    def __init__(self, worker: _Optional[int] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., status: _Optional[str] = ..., phase: _Optional[str] = ..., round: _Optional[int] = ..., silent_seconds: _Optional[float] = ..., step_time: _Optional[float] = ..., local_steps: _Optional[int] = ..., accuracy: _Optional[float] = ...) -> None: ...

class BrokenLink(_message.Message):
    __slots__ = ("worker", "peer", "why", "since", "last", "failures")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    worker: int
    peer: int
    why: str
    since: int
    last: int
    failures: int
    def __init__(self, worker: _Optional[int] = ..., peer: _Optional[int] = ..., why: _Optional[str] = ..., since: _Optional[int] = ..., last: _Optional[int] = ..., failures: _Optional[int] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("run", "epoch", "round", "rounds", "state", "why", "members", "versions", "clock", "round_seconds", "broken", "broken_links", "expiring", "warnings")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    ROUND_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    BROKEN_LINKS_FIELD_NUMBER: _ClassVar[int]
    EXPIRING_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    run: str
    epoch: int
    round: int
    rounds: int
    state: str
    why: str
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    versions: _containers.ScalarMap[str, str]
    clock: float
    round_seconds: float
    broken: _containers.RepeatedCompositeFieldContainer[BrokenLink]
    broken_links: int
    expiring: _containers.RepeatedCompositeFieldContainer[ExpiringCertificate]
    warnings: _containers.RepeatedCompositeFieldContainer[Warning]
    def __init__(self, run: _Optional[str] = ..., epoch: _Optional[int] = ..., round: _Optional[int] = ..., rounds: _Optional[int] = ..., state: _Optional[str] = ..., why: _Optional[str] = ..., members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., versions: _Optional[_Mapping[str, str]] = ..., clock: _Optional[float] = ..., round_seconds: _Optional[float] = ..., broken: _Optional[_Iterable[_Union[BrokenLink, _Mapping]]] = ..., broken_links: _Optional[int] = ..., expiring: _Optional[_Iterable[_Union[ExpiringCertificate, _Mapping]]] = ..., warnings: _Optional[_Iterable[_Union[Warning, _Mapping]]] = ...) -> None: ...

class Warning(_message.Message):
    __slots__ = ("key", "members", "value", "text")
    KEY_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    key: str
    members: _containers.RepeatedScalarFieldContainer[str]
    value: float
    text: str
    def __init__(self, key: _Optional[str] = ..., members: _Optional[_Iterable[str]] = ..., value: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class ExpiringCertificate(_message.Message):
    __slots__ = ("name", "seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    seconds: float
    def __init__(self, name: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class CommandRequest(_message.Message):
    __slots__ = ("envelope", "drain", "stop", "allow", "remove")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    ALLOW_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    drain: str
    stop: bool
    allow: str
    remove: str
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., drain: _Optional[str] = ..., stop: bool = ..., allow: _Optional[str] = ..., remove: _Optional[str] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("envelope", "wanted", "stand", "bytes", "patience", "base", "ticket", "exchange")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    STAND_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    wanted: Wanted
    stand: Stand
    bytes: int
    patience: float
    base: bytes
    ticket: bytes
    exchange: int
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., wanted: _Optional[_Union[Wanted, str]] = ..., stand: _Optional[_Union[Stand, _Mapping]] = ..., bytes: _Optional[int] = ..., patience: _Optional[float] = ..., base: _Optional[bytes] = ..., ticket: _Optional[bytes] = ..., exchange: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("envelope", "total", "encoding", "data", "digest", "ticket", "ready")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    total: int
    encoding: str
    data: bytes
    digest: bytes
    ticket: bytes
    ready: float
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., total: _Optional[int] = ..., encoding: _Optional[str] = ..., data: _Optional[bytes] = ..., digest: _Optional[bytes] = ..., ticket: _Optional[bytes] = ..., ready: _Optional[float] = ...) -> None: ...
