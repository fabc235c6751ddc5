! Memory from MPI by all its forms in Fortran, used in a collective: of Fortran's pointers, of addresses (as of Cray pointers), of mpi_f08.
module answers
  use, intrinsic :: iso_c_binding
  implicit none
contains
  subroutine check(values, ranks)
    real(c_double), intent(in) :: values(:)
    integer, intent(in) :: ranks
    if (any(values /= real(ranks, c_double))) then
      print *, 'wrong sum', values(1), 'expected', ranks
      error stop 1
    end if
  end subroutine
end module

subroutine by_f77(ranks)
  use, intrinsic :: iso_c_binding
  use answers
  implicit none
  include 'mpif.h'
  integer, intent(in) :: ranks
  integer(kind=MPI_ADDRESS_KIND) :: bytes, address
  integer :: ierror
  real(c_double) :: values(1000)
  pointer (address, values)
  bytes = 8000
  call MPI_ALLOC_MEM(bytes, MPI_INFO_NULL, address, ierror)
  values = 1
  call MPI_ALLREDUCE(MPI_IN_PLACE, values, 1000, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierror)
  call check(values, ranks)
  call MPI_FREE_MEM(values, ierror)
end subroutine

subroutine by_module(ranks)
  use mpi
  use, intrinsic :: iso_c_binding
  use answers
  implicit none
  integer, intent(in) :: ranks
  type(c_ptr) :: memory
  real(c_double), pointer :: values(:)
  integer :: ierror
  call MPI_ALLOC_MEM(8000_MPI_ADDRESS_KIND, MPI_INFO_NULL, memory, ierror)
  call c_f_pointer(memory, values, [1000])
  values = 1
  call MPI_ALLREDUCE(MPI_IN_PLACE, values, 1000, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierror)
  call check(values, ranks)
  call MPI_FREE_MEM(values, ierror)
end subroutine

subroutine by_f08(ranks)
  use mpi_f08
  use, intrinsic :: iso_c_binding
  use answers
  implicit none
  integer, intent(in) :: ranks
  type(c_ptr) :: memory
  real(c_double), pointer :: values(:)
  call MPI_Alloc_mem(8000_MPI_ADDRESS_KIND, MPI_INFO_NULL, memory)
  call c_f_pointer(memory, values, [1000])
  values = 1
  call MPI_Allreduce(MPI_IN_PLACE, values, 1000, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD)
  call check(values, ranks)
  call MPI_Free_mem(values)
end subroutine

subroutine by_window(ranks)
  use mpi_f08
  use, intrinsic :: iso_c_binding
  use answers
  implicit none
  integer, intent(in) :: ranks
  type(c_ptr) :: memory
  type(MPI_Win) :: win
  real(c_double), pointer :: values(:)
  call MPI_Win_allocate(8000_MPI_ADDRESS_KIND, 8, MPI_INFO_NULL, MPI_COMM_WORLD, memory, win)
  call c_f_pointer(memory, values, [1000])
  values = 1
  call MPI_Allreduce(MPI_IN_PLACE, values, 1000, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD)
  call check(values, ranks)
  call MPI_Win_free(win)
end subroutine

program memory_in_fortran
  use mpi_f08
  implicit none
  integer :: ranks, rank
  call MPI_Init()
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call by_f77(ranks)
  call by_module(ranks)
  call by_f08(ranks)
  call by_window(ranks)
  if (rank == 0) print *, 'fortran: ok'
  call MPI_Finalize()
end program
