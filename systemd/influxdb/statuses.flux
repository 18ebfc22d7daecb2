// Task for InfluxDB 2: copies Peerwatch's statuses to where notification rules look for them.
//
// A rule sees each row once, by its time, and not those that come behind its back. So rows are copied with a time
// that is still ahead when the copy is made: every + offset + 20 s. Alerts come later by so much.
// The task's token must be allowed to write to _monitoring.

option task = {name: "peerwatch statuses", every: 1m, offset: 10s}

from(bucket: "peerwatch")
    |> range(start: -task.every)
    |> filter(fn: (r) => r._measurement == "statuses")
    |> timeShift(duration: 1m30s)
    |> to(bucket: "_monitoring")
