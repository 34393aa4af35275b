"""Traffic that answers back: requests that follow answers, users in a closed loop, clients that leave and try again.

source      what a source of requests is: those that wait for nothing, and those that an answer or a failure lets go
script      the rows of a workload, some of which follow the answer of another
closed_loop users that take requests from one pool
issued      the requests that have arrived, in order of arrival, in columns
clients     lets requests arrive, leaves when patience runs out, tries again
live        requests and clients from outside of the run, while it goes on

No random number is drawn here as things happen: a request's lengths, think time and backoff belong to its place in its
source, so no policy, router or class can move those of another.
"""
