"""Jobs: measurements that outlive the request, and the process, that asked for them."""
