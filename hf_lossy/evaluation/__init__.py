"""Every lossy law beside its matched baseline: tasks, methods, runs that can be resumed, reports."""
