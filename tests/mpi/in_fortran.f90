! The three ways in which Fortran reaches MPI, each with and without MPI_IN_PLACE.
module by_mpif_h
contains
  subroutine check_mpif_h(ranks, rank)
    include 'mpif.h'
    integer :: ranks, rank, total, code
    call MPI_ALLREDUCE(rank, total, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, code)
    if (total /= ranks * (ranks - 1) / 2) call MPI_ABORT(MPI_COMM_WORLD, 1, code)
    total = rank
    call MPI_ALLREDUCE(MPI_IN_PLACE, total, 1, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD, code)
    if (total /= ranks - 1) call MPI_ABORT(MPI_COMM_WORLD, 2, code)
    call MPI_BARRIER(MPI_COMM_WORLD, code)
  end subroutine
end module

module by_use_mpi
contains
  subroutine check_use_mpi(ranks, rank)
    use mpi
    integer :: ranks, rank, code
    double precision :: value(2)
    value = rank
    call MPI_ALLREDUCE(MPI_IN_PLACE, value, 2, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, code)
    if (any(value /= ranks * (ranks - 1) / 2)) call MPI_ABORT(MPI_COMM_WORLD, 3, code)
    call MPI_BCAST(value, 2, MPI_DOUBLE_PRECISION, ranks - 1, MPI_COMM_WORLD, code)
    call MPI_BARRIER(MPI_COMM_WORLD, code)
  end subroutine
end module

module by_use_mpi_f08
contains
  subroutine check_use_mpi_f08(ranks, rank)
    use mpi_f08
    integer :: ranks, rank
    real :: value
    logical :: flag, all_true
    value = rank
    call MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_REAL, MPI_SUM, MPI_COMM_WORLD)
    if (value /= ranks * (ranks - 1) / 2) call MPI_Abort(MPI_COMM_WORLD, 4)
    flag = rank /= 1
    call MPI_Allreduce(flag, all_true, 1, MPI_LOGICAL, MPI_LAND, MPI_COMM_WORLD)
    if (all_true .neqv. ranks < 2) call MPI_Abort(MPI_COMM_WORLD, 5)
    call MPI_Barrier(MPI_COMM_WORLD)
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
