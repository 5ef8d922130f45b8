"""Adapters, which bring events to the input topics. What each posts is made by `writer.outgoing`:
topic, key, value, headers.

| module | takes | writes to | an event that is sent again |
|---|---|---|---|
| `replayed_calls`, `replay` | recordings | all three | has its id again only with `--keep-ids` |
| `simulator` | a seed | all three | has its id again |
| `watch` | recordings while they are written | all three | has the number of its place or of its line, also after a restart |
| `monitor` | ElevenLabs' monitor of a live call | `elevenlabs.events`; start and end to `audit.events` | is known by its content |
| `http/elevenlabs` | ElevenLabs' webhook after a call | the same | has an id made of the call's and its place |
| `http/posted` | POST /events of any framework | by its `stream` or type | has its CloudEvents id, or that of the request |
| the same | messages of a framework of `engine/sources/frameworks` | by its type | has their id, or is known by its content |
| `http/traces` | spans of LiveKit's agents, pipecat's bots and `gen_ai.*` | by its type | has an id made of the span's |

`publisher` takes events one by one and writes them in batches: to Kafka by `AcknowledgedWriter`,
which returns when Kafka has them, and to a running `serve` by `posting`.
"""
