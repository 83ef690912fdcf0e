"""One module per command, named after it; its function is the command, its parameters the options.

    start (demo, init)  run  compare  sweep  tune  reproduce        run experiments
    show  dash  explain  whatif  report  export                     read their records
    coordinator  worker  doctor  certs  cluster  verify             the real network
    data                                                            data sets

verify is `fedhp cluster verify`; dash has the option --dash of the other commands as well.
"""
