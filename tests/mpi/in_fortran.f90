! The three ways in which Fortran reaches MPI, each with and without MPI_IN_PLACE, blocking and not.
module by_mpif_h
contains
  subroutine check_mpif_h(ranks, rank)
    include 'mpif.h'
    integer :: ranks, rank, total, code, requests(2), from, before
    call MPI_ALLREDUCE(rank, total, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, code)
    if (total /= ranks * (ranks - 1) / 2) call MPI_ABORT(MPI_COMM_WORLD, 1, code)
    total = rank
    call MPI_ALLREDUCE(MPI_IN_PLACE, total, 1, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD, code)
    if (total /= ranks - 1) call MPI_ABORT(MPI_COMM_WORLD, 2, code)
    call MPI_BARRIER(MPI_COMM_WORLD, code)
    before = mod(rank + ranks - 1, ranks)
    total = rank
    call MPI_IALLREDUCE(MPI_IN_PLACE, total, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(1), code)
    call MPI_IRECV(from, 1, MPI_INTEGER, before, 0, MPI_COMM_WORLD, requests(2), code)
    call MPI_SEND(rank, 1, MPI_INTEGER, mod(rank + 1, ranks), 0, MPI_COMM_WORLD, code)
    call MPI_WAITALL(2, requests, MPI_STATUSES_IGNORE, code)
    if (total /= ranks * (ranks - 1) / 2 .or. from /= before) call MPI_ABORT(MPI_COMM_WORLD, 6, code)
  end subroutine
end module

module by_use_mpi
contains
  subroutine check_use_mpi(ranks, rank)
    use mpi
    integer :: ranks, rank, code, request, status(MPI_STATUS_SIZE), i, places(ranks), counts(ranks)
    double precision :: value(2), all(ranks)
    logical :: done
    value = rank
    call MPI_ALLREDUCE(MPI_IN_PLACE, value, 2, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, code)
    if (any(value /= ranks * (ranks - 1) / 2)) call MPI_ABORT(MPI_COMM_WORLD, 3, code)
    call MPI_BCAST(value, 2, MPI_DOUBLE_PRECISION, ranks - 1, MPI_COMM_WORLD, code)
    call MPI_BARRIER(MPI_COMM_WORLD, code)
    value = rank
    counts = 1
    places = [(ranks - i, i = 1, ranks)]
    call MPI_IALLGATHERV(value, 1, MPI_DOUBLE_PRECISION, all, counts, places, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, request, code)
    done = .false.
    do while (.not. done)
      call MPI_TEST(request, done, status, code)
    end do
    if (request /= MPI_REQUEST_NULL) call MPI_ABORT(MPI_COMM_WORLD, 7, code)
    if (any(all /= [(dble(ranks - i), i = 1, ranks)])) call MPI_ABORT(MPI_COMM_WORLD, 8, code)
  end subroutine
end module

module by_use_mpi_f08
contains
  subroutine check_use_mpi_f08(ranks, rank)
    use mpi_f08
    integer :: ranks, rank
    real :: value
    real, asynchronous :: shared
    logical :: flag, all_true
    integer :: which
    type(MPI_Request) :: requests(2)
    type(MPI_Status) :: status
    value = rank
    call MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_REAL, MPI_SUM, MPI_COMM_WORLD)
    if (value /= ranks * (ranks - 1) / 2) call MPI_Abort(MPI_COMM_WORLD, 4)
    flag = rank /= 1
    call MPI_Allreduce(flag, all_true, 1, MPI_LOGICAL, MPI_LAND, MPI_COMM_WORLD)
    if (all_true .neqv. ranks < 2) call MPI_Abort(MPI_COMM_WORLD, 5)
    call MPI_Barrier(MPI_COMM_WORLD)
    shared = rank
    call MPI_Ibcast(shared, 1, MPI_REAL, 1, MPI_COMM_WORLD, requests(2))
    requests(1) = MPI_REQUEST_NULL
    call MPI_Waitany(2, requests, which, status)
    if (requests(2) /= MPI_REQUEST_NULL .or. shared /= 1) call MPI_Abort(MPI_COMM_WORLD, 9)
    call MPI_Ibarrier(MPI_COMM_WORLD, requests(1))
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE)
  end subroutine
end module

program in_fortran
  use mpi_f08
  use by_mpif_h
  use by_use_mpi
  use by_use_mpi_f08
  integer :: ranks, rank
  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call check_mpif_h(ranks, rank)
  call check_use_mpi(ranks, rank)
  call check_use_mpi_f08(ranks, rank)
  if (rank == 0) print *, 'fortran: ok'
  call MPI_Finalize()
end program
