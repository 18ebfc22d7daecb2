// Task for InfluxDB 2: a check that is critical where an agent has fallen silent, be it with all others or while no
// detector runs. An agent writes to the table host once a second, or as agent.period_seconds says.

import "experimental"
import "influxdata/influxdb/monitor"
import "influxdata/influxdb/schema"

option task = {name: "peerwatch deadman", every: 1m, offset: 10s}

check = {_check_id: "00000070ee57a7c5", _check_name: "peerwatch agent", _type: "deadman", tags: {about: "agent"}}

// A machine that has been silent for longer than this is taken to be switched off on purpose.
from(bucket: "peerwatch")
    |> range(start: -1h)
    |> filter(fn: (r) => r._measurement == "host" and r._field == "cpu_utilization_ratio")
    |> last()
    |> schema.fieldsAsCols()
    |> monitor.deadman(t: experimental.subDuration(from: now(), d: 2m))
    |> monitor.check(
        data: check,
        crit: (r) => r.dead,
        messageFn: (r) => if r.dead then "${r.machine}: no reading for 2 minutes" else "${r.machine}: its agent reads",
    )
