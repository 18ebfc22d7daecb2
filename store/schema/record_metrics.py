"""Columns of what programs and people record: checks, events, the state of agents and detectors, verdicts, alerts.

The columns of a row are those of store/schema/catalogue.py.
"""

ROWS = """
check | outcome | text | text | none | 0 | 0 | - | passed, failed, error (no result), cut off (by its time limit) or missing (no tool)
check | value | number | gauge | none | 0 | 0 | - | what the check measured, if it measures
check | measure | text | text | none | 0 | 0 | - | unit of the value
check | duration_seconds | seconds | gauge | none | 0 | 0 | - | how long it took
check | device | text | text | none | 0 | 0 | - | the device that failed, such as gpu:3
check | message | text | text | none | 0 | 0 | - | what the tool reported, in a line
event | message | text | text | none | 0 | 0 | - | what happened, in words
event | device | text | text | none | 0 | 0 | - | the device that is meant, such as gpu:3
event | severity | text | text | none | 0 | 0 | - | info, warn or crit
event | signature | text | text | none | 0 | 0 | - | of what the detector or the operator has written: HMAC-SHA256 with the signing key
event | until | nanoseconds | gauge | none | 0 | 0 | - | when a maintenance is to end, where the operator has said so, or a zoom
event | begin | nanoseconds | gauge | none | 0 | 0 | - | when a maintenance is to begin, where that is not the row's time
event | every | nanoseconds | gauge | none | 0 | 0 | - | how long after its beginning a maintenance begins again
event | times | number | gauge | none | 0 | 0 | - | how many times such a maintenance begins in all
event | hertz | readings per second | gauge | none | 0 | 0 | - | how often the detector asks to read the source that the message names
source | success | 0 or 1 | gauge | none | 0 | 0 | - | whether the last reading worked
source | duration_seconds | seconds | gauge | none | 0 | 0 | - | how long the last reading took
source | failures_total | readings | counter | none | 0 | 0 | - | readings that failed
source | lost_total | readings | counter | none | 0 | 0 | - | probe hits that could not be counted (source kernel)
source | zoomed_seconds_total | seconds | counter | none | 0 | 0 | - | time in which a source was read many times a second (source zoom)
source | refused_total | orders | counter | none | 0 | 0 | - | orders to do so that were refused (source zoom)
source | foreign_total | readings | counter | none | 0 | 0 | - | probe hits of processes outside of the agent's PID namespace (source kernel)
source | waiting_rows | rows | gauge | none | 0 | 0 | - | rows that wait on disk for the server (source spool)
source | waiting_bytes | bytes | gauge | none | 0 | 0 | - | what they take, packed (source spool)
source | dropped_rows_total | rows | counter | none | 0 | 0 | - | rows that waited too long, or were too many (source spool)
source | refused_rows_total | rows | counter | none | 0 | 0 | - | rows that the server refused (source spool)
source | error | text | text | none | 0 | 0 | - | why the last reading failed
source | unavailable | text | text | none | 0 | 0 | - | why this machine has nothing for it to read
probe | state | text | text | none | 0 | 0 | - | on, blocked or gone
probe | reason | text | text | none | 0 | 0 | - | why it is not on, or not on every function
probe | symbols | number | gauge | none | 0 | 0 | - | functions that carry a probe
probe | suspended | number | gauge | none | 0 | 0 | - | groups of functions that carry no probe now, to hold agent.probe_share
probe | hit_seconds | seconds | gauge | none | 0 | 0 | - | time that one hit of its dearest probes takes from the process, measured at the agent's start
probe | core_ratio | ratio | gauge | none | 0 | 0 | - | share of a core that its probes take of the process that loses the most
probe | path | text | text | none | 0 | 0 | - | where the library was seen
verdict | device | text | text | none | 0 | 0 | - | the device that is meant, such as gpu:3
verdict | kind | text | text | none | 0 | 0 | - | the method that found it: peer, evidence, progress
verdict | metric | text | text | none | 0 | 0 | - | the metric that deviates most
verdict | score | score | gauge | none | 0 | 0 | - | how far from the peers, in multiples of what raises an alarm
verdict | since | nanoseconds | gauge | none | 0 | 0 | - | when the pattern began
verdict | level | text | text | none | 0 | 0 | - | crit, warn or ok
verdict | message | text | text | none | 0 | 0 | - | the verdict in words
verdict | signature | text | text | none | 0 | 0 | - | HMAC-SHA256 of the row with the signing key (docs/security.md)
lease | holder | text | text | none | 0 | 0 | - | the detector that holds the term: host, process, and a random part
lease | term | terms | counter | none | 0 | 0 | - | number of the term: of two holders the one with the later term speaks
lease | beat | renewals | counter | none | 0 | 0 | - | how often the term was renewed; 0: claimed, and not held yet
lease | until | nanoseconds | gauge | none | 0 | 0 | - | when the term lapses unless it is renewed, by the holder's clock; 0: given back
lease | signature | text | text | none | 0 | 0 | - | HMAC-SHA256 of the row with the signing key
threshold | asked | pages | gauge | none | 0 | 0 | - | false pages in 1,000 machine-hours that are asked for; 0: built-in thresholds
threshold | machine_hours | hours | gauge | none | 0 | 0 | - | machine-hours of health in the last week
threshold | excursions | excursions | gauge | none | 0 | 0 | - | excursions of that time that are remembered
threshold | readings | readings | gauge | none | 0 | 0 | - | readings with a threshold that is learned
threshold | raised | readings | gauge | none | 0 | 0 | - | those with a higher threshold than the built-in one
threshold | lowered | readings | gauge | none | 0 | 0 | - | those with a lower one
threshold | bounded | readings | gauge | none | 0 | 0 | - | those that would need more than the highest threshold that is allowed
threshold | trust | ratio | gauge | none | 0 | 0 | - | share of the way down to lower thresholds that is gone
threshold | message | text | text | none | 0 | 0 | - | the same in one line
delivery | incident | text | text | none | 0 | 0 | - | key of the incident
delivery | level | text | text | none | 0 | 0 | - | the level that was sent; ok: its end
delivery | message | text | text | none | 0 | 0 | - | of an alert that Peerwatch is blind, the verdict as JSON
delivery | signature | text | text | none | 0 | 0 | - | HMAC-SHA256 of the row with the signing key
"""
